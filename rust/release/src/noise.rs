//! Noise on whole arrays, and the sparse vector technique, from parameters in the units of the data.

use optstream_core::Error;
use optstream_core::batch;
use optstream_core::cube::CubeScale;
use optstream_core::gaussian::Deviation;
use optstream_core::grid::{Grid, default_step};
use optstream_core::ratio::Ratio;
use optstream_core::rng::Key;
use optstream_core::scale::Scale;
use optstream_core::svt::SparseVector;

use crate::threads;

/// Which noise values get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Law {
    /// Independent discrete Laplace noise.
    Laplace,
    /// Independent discrete Gaussian noise.
    Gaussian,
    /// Cube noise on blocks of so many consecutive values.
    Cube(usize),
}

/// Values on their grid and the scale of their noise, checked in full before anything is drawn.
#[derive(Debug, Clone)]
pub struct Request {
    grid: Grid,
    sensitivity: u64,
    scale: Scale,
    units: Vec<i64>,
}

impl Request {
    /// Values that move by at most `sensitivity` at a cost of `epsilon`, or with so large a ratio of sensitivity to
    /// standard deviation. Without a step the grid is the default of the sensitivity.
    ///
    /// # Errors
    /// If a parameter lies outside its bound or a value is not finite.
    pub fn new(
        values: &[f64],
        sensitivity: f64,
        epsilon: &Ratio,
        bounds: (f64, f64),
        step: Option<f64>,
    ) -> Result<Self, Error> {
        let step = step.map_or_else(|| default_step(sensitivity), Ok)?;
        let grid = Grid::new(step, bounds.0, bounds.1)?;
        let sensitivity = grid.sensitivity(sensitivity)?;
        let scale = Scale::new(sensitivity, epsilon)?;
        Ok(Self { grid, sensitivity, scale, units: grid.quantise(values)? })
    }

    /// The values in grid units, from which the key of a retry is derived.
    #[must_use]
    pub fn units(&self) -> &[i64] {
        &self.units
    }

    /// The values with their noise.
    ///
    /// # Errors
    /// If values are no whole number of blocks, before anything is drawn.
    pub fn noisy(mut self, law: Law, key: &Key) -> Result<Vec<f64>, Error> {
        let threads = threads(self.units.len());
        match law {
            Law::Laplace => batch::laplace(&mut self.units, &self.scale, key, threads),
            Law::Gaussian => batch::gaussian(&mut self.units, &Deviation::new(self.scale), key, threads),
            Law::Cube(length) => {
                batch::cube(&mut self.units, &CubeScale::new(self.scale, length)?, key, threads)?;
            }
        }
        Ok(self.grid.values(self.units))
    }

    /// Which values are above a threshold, whose noise has the budget of the request and that of values `epsilon`.
    ///
    /// # Guarantee
    /// With `c` positive answers the scale of the values is `2 c D/epsilon`: see [`SparseVector::above_threshold`].
    ///
    /// # Errors
    /// If the threshold or the scale lies outside its bound, before anything is drawn.
    pub fn above(self, threshold: f64, epsilon: &Ratio, positives: usize, key: &Key) -> Result<Vec<bool>, Error> {
        let threshold = self.grid.nearest(threshold)?;
        let twice = u64::try_from(positives).unwrap_or(u64::MAX).saturating_mul(2);
        let queries = Scale::new(self.sensitivity.saturating_mul(twice), epsilon)?;
        let vector = SparseVector::new(self.scale, queries, positives);
        Ok(vector.above_threshold(&self.units, threshold, &mut key.stream(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use optstream_core::rng::Secret;
    use optstream_core::{gaussian, laplace};

    fn key() -> Key {
        Key::derive(&Secret::new([1; 32]), &[b"noise"], &[])
    }

    fn ratio(numerator: u128, denominator: u128) -> Ratio {
        Ratio::new("epsilon", numerator, denominator).unwrap()
    }

    fn request() -> Request {
        Request::new(&[1.0, 2.0, 3.0, 4.0], 10.01, &ratio(1, 2), (0.0, 3.5), Some(0.125)).unwrap()
    }

    /// Each law is that of the core, at the scale of 81 units and half of epsilon, on clamped values.
    #[test]
    fn laws_are_those_of_the_core() {
        let scale = Scale::new(81, &ratio(1, 2)).unwrap();
        let drawn = |draw: &dyn Fn(&mut [i64], &mut optstream_core::rng::Keystream)| -> Vec<f64> {
            let mut units = [8, 16, 24, 28];
            draw(&mut units, &mut key().stream(0));
            request().grid.values(units.to_vec())
        };
        assert_eq!(request().units(), [8, 16, 24, 28]);
        assert_eq!(request().noisy(Law::Laplace, &key()).unwrap(), drawn(&|u, s| laplace::perturb(u, &scale, s)));
        let sigma = Deviation::new(scale);
        assert_eq!(request().noisy(Law::Gaussian, &key()).unwrap(), drawn(&|u, s| gaussian::perturb(u, &sigma, s)));
        let block = CubeScale::new(scale, 4).unwrap();
        let cubed = drawn(&|u, _| batch::cube(u, &block, &key(), 1).unwrap());
        assert_eq!(request().noisy(Law::Cube(4), &key()).unwrap(), cubed);
        assert!(request().noisy(Law::Cube(3), &key()).is_err());
        assert!(request().noisy(Law::Cube(0), &key()).is_err());
    }

    #[test]
    fn the_default_grid_is_that_of_the_sensitivity() {
        let made = Request::new(&[1.0], 10.0, &ratio(1, 1), (0.0, 8.0), None).unwrap();
        assert_eq!(made.units(), [128]);
        assert!(Request::new(&[], 10.0, &ratio(1, 1), (0.0, 8.0), None).is_err());
        assert!(Request::new(&[1.0], -1.0, &ratio(1, 1), (0.0, 8.0), None).is_err());
    }

    /// Scores get noise of `2 c D/epsilon`, the threshold that of the request.
    #[test]
    fn scores_and_threshold_have_the_scales_of_the_technique() {
        let queries = Scale::new(81 * 2 * 3, &ratio(1, 4)).unwrap();
        let vector = SparseVector::new(Scale::new(81, &ratio(1, 2)).unwrap(), queries, 3);
        for index in 0..200_u64 {
            let key = Key::derive(&Secret::new([1; 32]), &[&index.to_le_bytes()], &[]);
            let wanted = vector.above_threshold(&[8, 16, 24, 28], 20, &mut key.stream(0));
            assert_eq!(request().above(2.5, &ratio(1, 4), 3, &key).unwrap(), wanted);
        }
        assert!(request().above(f64::NAN, &ratio(1, 4), 3, &key()).is_err());
    }
}
