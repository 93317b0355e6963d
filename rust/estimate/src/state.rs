//! Everything that a filter knows as bytes, from which it is made again bit for bit.

use std::sync::Arc;

use crate::bank::Model;
use crate::error::Error;
use crate::filter::{Bank, Filter, MODELS, Measured};
use crate::layout::Layout;
use crate::matrix::mirror;

/// The first bytes of a state: its kind and version.
const MAGIC: &[u8; 8] = b"optest\x00\x03";
/// Most steps and periods of a season that are believed of a state.
const MOST: u64 = 1 << 24;

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn whole(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn signed(&mut self, value: i64) {
        self.0.extend(value.to_le_bytes());
    }

    fn size(&mut self, value: usize) {
        self.whole(value as u64);
    }

    fn reals(&mut self, values: &[f64]) {
        for value in values {
            self.0.extend(value.to_le_bytes());
        }
    }
}

struct Reader<'a>(&'a [u8]);

const SHORT: Error = Error::State { reason: "of another length" };

impl Reader<'_> {
    fn bytes(&mut self) -> Result<[u8; 8], Error> {
        let (head, rest) = self.0.split_first_chunk::<8>().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*head)
    }

    fn whole(&mut self) -> Result<u64, Error> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn signed(&mut self) -> Result<i64, Error> {
        self.bytes().map(i64::from_le_bytes)
    }

    /// A number of things of which each takes a byte or more, or a small number.
    fn size(&mut self) -> Result<usize, Error> {
        let value = self.whole()?;
        if value > MOST {
            return Err(Error::State { reason: "damaged" });
        }
        usize::try_from(value).map_err(|_| SHORT)
    }

    fn flag(&mut self) -> Result<bool, Error> {
        match self.whole()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::State { reason: "damaged" }),
        }
    }

    fn real(&mut self) -> Result<f64, Error> {
        let value = self.bytes().map(f64::from_le_bytes)?;
        if value.is_finite() { Ok(value) } else { Err(Error::State { reason: "damaged" }) }
    }

    fn reals(&mut self, count: usize) -> Result<Vec<f64>, Error> {
        if self.0.len() < 8 * count {
            return Err(SHORT);
        }
        (0..count).map(|_| self.real()).collect()
    }
}

impl Filter {
    /// Everything the filter knows.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer(MAGIC.to_vec());
        for number in [self.geometry.w, self.season, usize::from(self.memory), usize::from(self.geometry.smooth)] {
            to.size(number);
        }
        to.size(usize::from(self.level.is_some()));
        let (mean, deviation) = self.level.unwrap_or((0.0, 0.0));
        for number in [self.count, self.since, self.asked, self.renewed, self.alarmed] {
            to.whole(number);
        }
        to.reals(&[self.alarm, self.information]);
        to.reals(&[mean, deviation, self.origin, self.centre, self.spread, self.scale, self.scanned]);
        to.reals(&self.evidence);
        to.reals(&self.signs);
        to.size(self.surprises.len());
        to.reals(&self.surprises);
        self.write_log(&mut to);
        to.size(usize::from(self.bank.is_some()));
        if let Some(bank) = &self.bank {
            to.size(usize::from(bank.last.is_some()));
            to.signed(bank.last.unwrap_or(0));
            for model in &bank.models {
                to.reals(&model.amplitudes);
                to.reals(&model.mean);
                for row in 0..model.covariance.rows {
                    to.reals(&model.covariance.row(row)[..=row]);
                }
            }
        }
        to.0
    }

    fn write_log(&self, to: &mut Writer) {
        let mut layouts: Vec<&Arc<Layout>> = Vec::new();
        let mut places = Vec::new();
        for measured in &self.log {
            let place = layouts.iter().position(|layout| layout.cells == measured.layout.cells);
            places.push(place.unwrap_or(layouts.len()));
            if place.is_none() {
                layouts.push(&measured.layout);
            }
        }
        to.size(layouts.len());
        for layout in layouts {
            to.size(layout.cells.len());
            for cell in &layout.cells {
                to.size(cell.len());
                for step in cell {
                    to.size(*step);
                }
            }
        }
        to.size(self.log.len());
        for (measured, place) in self.log.iter().zip(places) {
            to.signed(measured.period);
            to.size(place);
            to.reals(&[measured.jump, measured.excess, measured.shift, measured.length, measured.density]);
            to.reals(&measured.values);
            to.reals(&measured.variances);
        }
    }

    /// The filter that [`Filter::to_bytes`] described.
    ///
    /// # Errors
    ///
    /// If the bytes are no state, or one of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let mut from = Reader(bytes);
        if from.bytes()? != *MAGIC {
            return Err(Error::State { reason: "of another kind or version" });
        }
        let (w, season, memory, smooth) = (from.size()?, from.size()?, from.flag()?, from.flag()?);
        let known = from.flag()?;
        let [count, since] = [from.whole()?, from.whole()?];
        let [asked, renewed, alarmed] = [from.whole()?, from.whole()?, from.whole()?];
        let [alarm, information] = [from.real()?, from.real()?];
        if [since, asked, renewed, alarmed].into_iter().any(|number| number > count) {
            return Err(Error::State { reason: "damaged" });
        }
        let [mean, deviation] = [from.real()?, from.real()?];
        let mut made = Self::new(w, season, memory, smooth, known.then_some((mean, deviation)))?;
        (made.count, made.since, made.asked) = (count, since, asked);
        (made.renewed, made.alarmed) = (renewed, alarmed);
        (made.alarm, made.information) = (alarm, information);
        for field in [&mut made.origin, &mut made.centre, &mut made.spread, &mut made.scale, &mut made.scanned] {
            *field = from.real()?;
        }
        for field in made.evidence.iter_mut().chain(&mut made.signs) {
            *field = from.real()?;
        }
        let surprises = from.size()?;
        made.surprises = from.reals(surprises)?;
        made.read_log(&mut from)?;
        if from.flag()? {
            made.bank = Some(made.read_bank(&mut from)?);
        }
        if from.0.is_empty() { Ok(made) } else { Err(SHORT) }
    }

    fn read_log(&mut self, from: &mut Reader<'_>) -> Result<(), Error> {
        let mut layouts = Vec::new();
        for _ in 0..from.size()? {
            let mut cells = Vec::new();
            for _ in 0..from.size()? {
                let count = from.size()?;
                cells.push((0..count).map(|_| from.size()).collect::<Result<Vec<usize>, Error>>()?);
            }
            layouts.push(self.layout(cells)?);
        }
        for _ in 0..from.size()? {
            let period = from.signed()?;
            let layout = layouts.get(from.size()?).map(Arc::clone).ok_or(Error::State { reason: "damaged" })?;
            let [jump, excess, shift] = [from.real()?, from.real()?, from.real()?];
            let [length, density] = [from.real()?, from.real()?];
            let values = from.reals(layout.len())?;
            let variances = from.reals(layout.len())?;
            self.log.push(Measured { period, layout, values, variances, jump, excess, shift, length, density });
        }
        Ok(())
    }

    fn read_bank(&self, from: &mut Reader<'_>) -> Result<Bank, Error> {
        let known = from.flag()?;
        let last = from.signed()?;
        let mut models = Vec::with_capacity(MODELS);
        for _ in 0..MODELS {
            let mut amplitudes = [0.0; 6];
            amplitudes.copy_from_slice(&from.reals(6)?);
            let mut model = Model::new(&self.geometry, amplitudes, (0.0, 0.0));
            model.mean = from.reals(self.geometry.size)?;
            for row in 0..self.geometry.size {
                let values = from.reals(row + 1)?;
                model.covariance.row_mut(row)[..=row].copy_from_slice(&values);
            }
            mirror(&mut model.covariance);
            models.push(model);
        }
        Ok(Bank { models, last: known.then_some(last) })
    }
}
