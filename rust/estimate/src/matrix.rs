//! Dense kernels with one accumulator for each element: the same bits whatever the width of a vector is.

use crate::wide::wide;

/// Rows and columns are padded with zeros to a multiple of this, so that kernels have no ragged ends.
pub const BLOCK: usize = 4;
/// Columns of a wide tile: as many sums as wide vectors have registers for, so that they do not wait for each other.
const WIDE: usize = 8;
/// Least pivot of a factor, as a share of what its place held.
const ROUNDING: f64 = 1e-15;

/// The columns that are wanted of each row: all of them, or those of the diagonal and beyond.
#[derive(Debug, Clone, Copy)]
pub enum Columns {
    All,
    Upper,
}

/// A matrix by rows, padded with zeros.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    pub rows: usize,
    pub columns: usize,
    pub stride: usize,
    pub data: Vec<f64>,
}

impl Matrix {
    pub fn zeros(rows: usize, columns: usize) -> Self {
        let stride = columns.next_multiple_of(BLOCK);
        Self { rows, columns, stride, data: vec![0.0; rows.next_multiple_of(BLOCK) * stride] }
    }

    pub fn row(&self, row: usize) -> &[f64] {
        &self.data[row * self.stride..row * self.stride + self.columns]
    }

    pub fn row_mut(&mut self, row: usize) -> &mut [f64] {
        &mut self.data[row * self.stride..row * self.stride + self.columns]
    }

    pub fn at(&self, row: usize, column: usize) -> f64 {
        self.data[row * self.stride + column]
    }

    pub fn at_mut(&mut self, row: usize, column: usize) -> &mut f64 {
        &mut self.data[row * self.stride + column]
    }

    pub fn transposed(&self) -> Self {
        let mut turned = Self::zeros(self.columns, self.rows);
        for row in (0..self.rows).step_by(BLOCK) {
            for column in (0..self.columns).step_by(BLOCK) {
                store(&mut turned, column, row, &flipped(&self.corner(row, column)));
            }
        }
        turned
    }

    /// The tile that begins at a place.
    #[inline]
    fn corner(&self, row: usize, column: usize) -> [[f64; BLOCK]; BLOCK] {
        std::array::from_fn(|index| *self.data[(row + index) * self.stride + column..].first_chunk().expect("padded"))
    }

    /// This matrix times a vector.
    pub fn times(&self, vector: &[f64]) -> Vec<f64> {
        (0..self.rows).map(|row| dot(self.row(row), vector)).collect()
    }

    /// The transpose of this matrix times a vector.
    pub fn transposed_times(&self, vector: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; self.columns];
        for (row, factor) in vector.iter().enumerate() {
            add(&mut sums, *factor, self.row(row));
        }
        sums
    }
}

/// The scalar product: entries that are a block apart are summed from the first to the last, and then these sums are.
pub fn dot(left: &[f64], right: &[f64]) -> f64 {
    let (lefts, rights) = (left.chunks_exact(WIDE), right.chunks_exact(WIDE));
    let rest = lefts.remainder().iter().zip(rights.remainder()).fold(0.0, |sum, (one, other)| sum + one * other);
    let mut sums = [0.0; WIDE];
    for (one, other) in lefts.zip(rights) {
        for ((sum, one), other) in sums.iter_mut().zip(one).zip(other) {
            *sum += one * other;
        }
    }
    sums.iter().fold(0.0, |total, sum| total + sum) + rest
}

/// Add a multiple of a vector.
#[inline]
pub fn add(to: &mut [f64], factor: f64, vector: &[f64]) {
    for (sum, value) in to.iter_mut().zip(vector) {
        *sum += factor * value;
    }
}

/// A tile of the product of a transpose with a matrix, summed over their rows from one on.
#[inline(always)]
#[expect(clippy::inline_always, reason = "part of what is compiled for wide vectors")]
fn tile<const WIDTH: usize>(
    left: &Matrix,
    row: usize,
    right: &Matrix,
    column: usize,
    first: usize,
) -> [[f64; WIDTH]; BLOCK] {
    let mut sums = [[0.0; WIDTH]; BLOCK];
    let lefts = left.data[first * left.stride..].chunks_exact(left.stride);
    let rights = right.data[first * right.stride..].chunks_exact(right.stride);
    for (one, other) in lefts.zip(rights).take(left.rows - first) {
        let one: &[f64; BLOCK] = one[row..].first_chunk().expect("padded");
        let other: &[f64; WIDTH] = other[column..].first_chunk().expect("padded");
        for (sum, factor) in sums.iter_mut().zip(one) {
            for (entry, value) in sum.iter_mut().zip(other) {
                *entry += factor * value;
            }
        }
    }
    sums
}

/// Do something for the tiles of some rows, from a column to another: for wide ones while they fit.
macro_rules! tiles {
    ($first:expr, $columns:expr, $width:ident, $column:ident => $work:block) => {
        let mut $column = $first;
        while $column + WIDE <= $columns {
            const $width: usize = WIDE;
            $work
            $column += WIDE;
        }
        while $column < $columns {
            const $width: usize = BLOCK;
            $work
            $column += BLOCK;
        }
    };
}

wide! {
    /// Multiply a vector by a factor times another vector.
    pub fn scale(to: &mut [f64], factor: f64, vector: &[f64]) {
        for (entry, value) in to.iter_mut().zip(vector) {
            *entry *= factor * value;
        }
    }

    /// The transpose of a matrix times another one of as many rows.
    pub fn product(left: &Matrix, right: &Matrix) -> Matrix {
        debug_assert_eq!(left.rows, right.rows);
        let mut made = Matrix::zeros(left.columns, right.columns);
        for row in (0..left.columns).step_by(BLOCK) {
            tiles!(0, made.stride, WIDTH, column => {
                let tile = tile::<WIDTH>(left, row, right, column, 0);
                store(&mut made, row, column, &tile);
            });
        }
        made
    }

    /// The same for a matrix that is zero above its diagonal, from some columns of each row on.
    pub fn triangle_product(lower: &Matrix, right: &Matrix, from: Columns) -> Matrix {
        debug_assert_eq!(lower.rows, right.rows);
        let mut made = Matrix::zeros(lower.columns, right.columns);
        for row in (0..lower.columns).step_by(BLOCK) {
            let first = match from {
                Columns::All => 0,
                Columns::Upper => row,
            };
            tiles!(first, made.stride, WIDTH, column => {
                let tile = tile::<WIDTH>(lower, row, right, column, row);
                store(&mut made, row, column, &tile);
            });
        }
        made
    }

    /// Take the transpose of a matrix times itself away from a symmetric one.
    pub fn take_square(from: &mut Matrix, root: &Matrix) {
        for row in (0..root.columns).step_by(BLOCK) {
            tiles!(0, row + BLOCK, WIDTH, column => {
                for (index, sum) in tile::<WIDTH>(root, row, root, column, 0).iter().enumerate() {
                    let start = (row + index) * from.stride + column;
                    for (entry, value) in from.data[start..start + WIDTH].iter_mut().zip(sum) {
                        *entry -= value;
                    }
                }
            });
        }
        mirror(from);
    }

    /// Copy what is below the diagonal to above it.
    pub fn mirror(matrix: &mut Matrix) {
        for row in (0..matrix.rows).step_by(BLOCK) {
            for column in (0..row).step_by(BLOCK) {
                let tile = flipped(&matrix.corner(row, column));
                store(matrix, column, row, &tile);
            }
            for place in row..row + BLOCK {
                for column in row..place {
                    matrix.data[column * matrix.stride + place] = matrix.data[place * matrix.stride + column];
                }
            }
        }
    }
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "part of what is compiled for wide vectors")]
fn flipped(tile: &[[f64; BLOCK]; BLOCK]) -> [[f64; BLOCK]; BLOCK] {
    std::array::from_fn(|row| std::array::from_fn(|column| tile[column][row]))
}

/// What is left of a tile of some rows when multiples of the rows above are taken away from it.
#[inline(always)]
#[expect(clippy::inline_always, reason = "part of what is compiled for wide vectors")]
fn remainder<const WIDTH: usize>(upper: &Matrix, right: &Matrix, row: usize, column: usize) -> [[f64; WIDTH]; BLOCK] {
    let mut sums: [[f64; WIDTH]; BLOCK] = std::array::from_fn(|index| {
        *right.data[(row + index) * right.stride + column..].first_chunk().expect("padded")
    });
    let factors = upper.data.chunks_exact(upper.stride);
    for (factors, line) in factors.zip(right.data.chunks_exact(right.stride)).take(row) {
        let factors: &[f64; BLOCK] = factors[row..].first_chunk().expect("padded");
        let line: &[f64; WIDTH] = line[column..].first_chunk().expect("padded");
        for (sum, factor) in sums.iter_mut().zip(factors) {
            for (entry, value) in sum.iter_mut().zip(line) {
                *entry -= factor * value;
            }
        }
    }
    sums
}

/// Solve for some rows: `corner` is what relates them to each other, with its pivots beside it.
#[inline(always)]
#[expect(clippy::inline_always, reason = "part of what is compiled for wide vectors")]
fn substitute<const WIDTH: usize>(
    (corner, pivots): &([[f64; BLOCK]; BLOCK], [f64; BLOCK]),
    mut sums: [[f64; WIDTH]; BLOCK],
) -> [[f64; WIDTH]; BLOCK] {
    for row in 0..BLOCK {
        for above in 0..row {
            let line = sums[above];
            for (entry, value) in sums[row].iter_mut().zip(line) {
                *entry -= corner[above][row] * value;
            }
        }
        for entry in &mut sums[row] {
            *entry /= pivots[row];
        }
    }
    sums
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "part of what is compiled for wide vectors")]
fn store<const WIDTH: usize>(to: &mut Matrix, row: usize, column: usize, tile: &[[f64; WIDTH]; BLOCK]) {
    for (index, line) in tile.iter().enumerate() {
        let start = (row + index) * to.stride + column;
        to.data[start..start + WIDTH].copy_from_slice(line);
    }
}

/// Factor a symmetric matrix as `U' U` in place; its part above the diagonal is read. `root` takes what a place of the
/// diagonal held and what is left of it, and returns what its row is divided by; if that is infinite, the row is zero.
#[inline(always)]
#[expect(clippy::inline_always, reason = "part of what is compiled for wide vectors")]
fn factor(matrix: &mut Matrix, root: impl Fn(f64, f64) -> f64) {
    for row in (0..matrix.rows).step_by(BLOCK) {
        let mut corner = remainder::<BLOCK>(matrix, matrix, row, row);
        let mut pivots = [1.0; BLOCK];
        for place in 0..BLOCK {
            for above in 0..place {
                let line = corner[above];
                for (entry, value) in corner[place].iter_mut().zip(line) {
                    *entry -= line[place] * value;
                }
            }
            if row + place < matrix.rows {
                pivots[place] = root(matrix.at(row + place, row + place), corner[place][place]);
            }
            for (column, entry) in corner[place].iter_mut().enumerate() {
                *entry = if column < place { 0.0 } else { *entry / pivots[place] };
            }
            corner[place][place] = if pivots[place].is_finite() { pivots[place] } else { 0.0 };
        }
        let known = (corner, pivots);
        tiles!(row + BLOCK, matrix.stride, WIDTH, column => {
            let tile = substitute(&known, remainder::<WIDTH>(matrix, matrix, row, column));
            store(matrix, row, column, &tile);
        });
        store(matrix, row, row, &corner);
    }
}

wide! {
    /// Factor a symmetric matrix as `U' U` (its part above the diagonal is read and replaced), no pivot below `least`; and
    /// solve `U' X = B` in place.
    pub fn eliminate(matrix: &mut Matrix, right: &mut Matrix, least: f64) {
        factor(matrix, |held, pivot| {
            // Below this a pivot is rounding alone, and dividing by it would make rounding errors grow without bound.
            let least = least.max(ROUNDING * held);
            if pivot > least { pivot.sqrt() } else { least.sqrt() }
        });
        solve(matrix, right);
    }

    /// Solve `U' X = B` in place for an upper triangular matrix.
    pub fn solve(upper: &Matrix, right: &mut Matrix) {
        for row in (0..upper.rows).step_by(BLOCK) {
            let corner = upper.corner(row, row);
            let pivots = std::array::from_fn(|index| if row + index < upper.rows { corner[index][index] } else { 1.0 });
            let known = (corner, pivots);
            tiles!(0, right.stride, WIDTH, column => {
                let tile = substitute(&known, remainder::<WIDTH>(upper, right, row, column));
                store(right, row, column, &tile);
            });
        }
    }

    /// Factor a symmetric matrix as `L L'`; directions whose pivot is not positive are left out. Its part above the diagonal is read.
    pub fn root(matrix: &Matrix) -> Matrix {
        let mut upper = matrix.clone();
        factor(&mut upper, |_, pivot| if pivot > 0.0 { pivot.sqrt() } else { f64::INFINITY });
        for row in 0..upper.rows {
            let stride = upper.stride;
            upper.data[row * stride..row * stride + row].fill(0.0);
        }
        upper.transposed()
    }

    /// For each column a of `columns` the squared length of `a' L` for a lower triangular L.
    pub fn squared_lengths(columns: &Matrix, lower: &Matrix) -> Vec<f64> {
        let mut lengths = vec![0.0; columns.columns.next_multiple_of(BLOCK)];
        for row in (0..columns.columns).step_by(BLOCK) {
            tiles!(0, lower.stride, WIDTH, column => {
                let sums = tile::<WIDTH>(columns, row, lower, column, column);
                for (length, sum) in lengths[row..].iter_mut().zip(sums) {
                    *length = sum.iter().fold(*length, |total, value| total + value * value);
                }
            });
        }
        lengths.truncate(columns.columns);
        lengths
    }
}

/// Reflections that make a matrix upper triangular (Householder), kept to be applied to vectors later.
#[derive(Debug, Clone)]
pub struct Reflections {
    /// One row for each: the vector, whose entries before its own place are zero, and its factor.
    vectors: Vec<(Vec<f64>, f64)>,
}

impl Reflections {
    /// Make a matrix upper triangular in place.
    pub fn of(matrix: &mut Matrix) -> Self {
        Self { vectors: reflect(matrix) }
    }

    /// Turn a vector as the matrix was turned.
    pub fn apply(&self, target: &mut [f64]) {
        for (place, (vector, factor)) in self.vectors.iter().enumerate() {
            let sum = factor * dot(vector, &target[place..]);
            add(&mut target[place..], -sum, vector);
        }
    }
}

wide! {
    fn reflect(matrix: &mut Matrix) -> Vec<(Vec<f64>, f64)> {
        let (rows, columns, stride) = (matrix.rows, matrix.columns, matrix.stride);
        let mut vectors = Vec::with_capacity(columns);
        for place in 0..columns.min(rows.saturating_sub(1)) {
            let vector: Vec<f64> = (place..rows).map(|row| matrix.at(row, place)).collect();
            let (vector, factor) = reflection(vector);
            if factor != 0.0 {
                // The length of what is left does not change, so its first entry is all that remains of a column.
                let first = place / BLOCK * BLOCK;
                let mut sums = vec![0.0; stride - first];
                for (line, weight) in matrix.data[place * stride..].chunks_exact(stride).zip(&vector) {
                    add(&mut sums, *weight, &line[first..]);
                }
                for sum in &mut sums {
                    *sum *= factor;
                }
                for (line, weight) in matrix.data[place * stride..].chunks_exact_mut(stride).zip(&vector) {
                    add(&mut line[first..], -*weight, &sums);
                }
            }
            for row in place + 1..rows {
                *matrix.at_mut(row, place) = 0.0;
            }
            vectors.push((vector, factor));
        }
        vectors
    }
}

/// The vector and factor of the reflection that takes a vector to a multiple of the first unit vector.
fn reflection(mut vector: Vec<f64>) -> (Vec<f64>, f64) {
    let largest = vector.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
    if largest == 0.0 {
        return (vector, 0.0);
    }
    for value in &mut vector {
        *value /= largest;
    }
    let length = dot(&vector, &vector).sqrt();
    vector[0] += if vector[0] < 0.0 { -length } else { length };
    let square = dot(&vector, &vector);
    (vector, 2.0 / square)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(rows: usize, columns: usize, seed: u64) -> Matrix {
        let mut matrix = Matrix::zeros(rows, columns);
        let mut state = seed;
        for row in 0..rows {
            for entry in matrix.row_mut(row) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *entry = f64::from(u32::try_from(state >> 40).expect("24 bits")) / 8_388_608.0 - 1.0;
            }
        }
        matrix
    }

    fn close(one: &Matrix, other: &Matrix) {
        for row in 0..one.rows {
            for (left, right) in one.row(row).iter().zip(other.row(row)) {
                assert!((left - right).abs() < 1e-10, "{left} {right}");
            }
        }
    }

    #[test]
    fn products_are_sums_over_rows() {
        let (left, right) = (made(7, 5, 1), made(7, 9, 2));
        let found = product(&left, &right);
        for row in 0..5 {
            for column in 0..9 {
                let sum = (0..7).fold(0.0, |sum, k| sum + left.at(k, row) * right.at(k, column));
                assert_eq!(found.at(row, column).to_bits(), f64::to_bits(sum));
            }
        }
    }

    #[test]
    fn a_factor_times_its_transpose_is_the_matrix_and_solves() {
        let tall = made(12, 7, 3);
        let square = product(&tall, &tall);
        let (mut upper, right) = (square.clone(), made(7, 6, 4));
        let mut solved = right.clone();
        eliminate(&mut upper, &mut solved, 1e-300);
        for row in 0..7 {
            for column in 0..row {
                *upper.at_mut(row, column) = 0.0;
            }
        }
        close(&product(&upper, &upper), &square);
        close(&product(&upper, &solved), &right);
        let lower = root(&square);
        close(&product(&lower.transposed(), &lower.transposed()), &square);
        let columns = made(7, 3, 5);
        let direct = product(&columns, &product(&square, &columns));
        for (column, length) in squared_lengths(&columns, &lower).into_iter().enumerate() {
            assert!((length - direct.at(column, column)).abs() < 1e-10);
        }
    }

    #[test]
    fn reflections_keep_lengths_and_make_triangles() {
        let tall = made(13, 5, 6);
        let mut turned = tall.clone();
        let reflections = Reflections::of(&mut turned);
        close(&product(&turned, &turned), &product(&tall, &tall));
        for column in 0..5 {
            let mut vector: Vec<f64> = (0..13).map(|row| tall.at(row, column)).collect();
            reflections.apply(&mut vector);
            for (row, value) in vector.iter().enumerate() {
                assert!((value - turned.at(row, column)).abs() < 1e-12);
                assert!(row <= column || value.abs() < 1e-12);
            }
        }
    }
}
