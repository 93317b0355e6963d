//! Dense kernels with one accumulator for each element: the same bits whatever the width of a vector is.

/// Rows and columns are padded with zeros to a multiple of this, so that kernels have no ragged ends.
pub const BLOCK: usize = 4;
/// Columns that a substitution works on at once: enough sums that do not wait for each other.
const PANEL: usize = 16;
/// Least pivot of a factor, as a share of what its place held.
const ROUNDING: f64 = 1e-15;

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
        for row in 0..self.rows {
            for (column, value) in self.row(row).iter().enumerate() {
                turned.data[column * turned.stride + row] = *value;
            }
        }
        turned
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

/// The scalar product, summed from the first entry to the last.
pub fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).fold(0.0, |sum, (one, other)| sum + one * other)
}

/// Add a multiple of a vector.
pub fn add(to: &mut [f64], factor: f64, vector: &[f64]) {
    for (sum, value) in to.iter_mut().zip(vector) {
        *sum += factor * value;
    }
}

/// One block of the product of a transpose with a matrix, summed over their rows.
#[inline]
fn block(left: &Matrix, row: usize, right: &Matrix, column: usize, first: usize) -> [[f64; BLOCK]; BLOCK] {
    let mut sums = [[0.0; BLOCK]; BLOCK];
    let lefts = left.data[first * left.stride..].chunks_exact(left.stride);
    let rights = right.data[first * right.stride..].chunks_exact(right.stride);
    for (one, other) in lefts.zip(rights).take(left.rows - first) {
        let one: &[f64; BLOCK] = one[row..].first_chunk().expect("padded");
        let other: &[f64; BLOCK] = other[column..].first_chunk().expect("padded");
        for (sum, factor) in sums.iter_mut().zip(one) {
            for (entry, value) in sum.iter_mut().zip(other) {
                *entry += factor * value;
            }
        }
    }
    sums
}

/// The transpose of a matrix times another one of as many rows.
pub fn product(left: &Matrix, right: &Matrix) -> Matrix {
    debug_assert_eq!(left.rows, right.rows);
    let mut made = Matrix::zeros(left.columns, right.columns);
    for row in (0..left.columns).step_by(BLOCK) {
        for column in (0..right.columns).step_by(BLOCK) {
            let sums = block(left, row, right, column, 0);
            for (index, sum) in sums.iter().enumerate() {
                let start = (row + index) * made.stride + column;
                made.data[start..start + BLOCK].copy_from_slice(sum);
            }
        }
    }
    made
}

/// Take the transpose of a matrix times itself away from a symmetric one.
pub fn take_square(from: &mut Matrix, root: &Matrix) {
    for row in (0..root.columns).step_by(BLOCK) {
        for column in (0..=row).step_by(BLOCK) {
            let sums = block(root, row, root, column, 0);
            for (index, sum) in sums.iter().enumerate() {
                let start = (row + index) * from.stride + column;
                for (entry, value) in from.data[start..start + BLOCK].iter_mut().zip(sum) {
                    *entry -= value;
                }
            }
        }
    }
    mirror(from);
}

/// Copy what is below the diagonal to above it.
pub fn mirror(matrix: &mut Matrix) {
    let stride = matrix.stride;
    for row in 0..matrix.rows {
        for column in 0..row {
            matrix.data[column * stride + row] = matrix.data[row * stride + column];
        }
    }
}

/// Factor a symmetric matrix as `U' U` (its part above the diagonal is read and replaced), no pivot below `least`; and
/// solve `U' X = B` in place.
pub fn eliminate(matrix: &mut Matrix, right: &mut Matrix, least: f64) {
    let (size, stride) = (matrix.rows, matrix.stride);
    let mut factors = vec![0.0; size];
    for row in 0..size {
        for (index, factor) in factors[..row].iter_mut().enumerate() {
            *factor = matrix.data[index * stride + row];
        }
        // Below this a pivot is rounding alone, and dividing by it would make rounding errors grow without bound.
        let least = least.max(ROUNDING * matrix.data[row * stride + row]);
        substitute(matrix, row, &factors[..row], row / BLOCK * BLOCK);
        let pivot = matrix.data[row * stride + row];
        let root = if pivot > least { pivot.sqrt() } else { least.sqrt() };
        for entry in &mut matrix.data[row * stride + row + 1..(row + 1) * stride] {
            *entry /= root;
        }
        matrix.data[row * stride + row] = root;
    }
    solve(matrix, right);
}

/// Solve `U' X = B` in place for an upper triangular matrix.
pub fn solve(upper: &Matrix, right: &mut Matrix) {
    let mut factors = vec![0.0; upper.rows];
    for row in 0..upper.rows {
        for (index, factor) in factors[..row].iter_mut().enumerate() {
            *factor = upper.data[index * upper.stride + row];
        }
        substitute(right, row, &factors[..row], 0);
        let pivot = upper.data[row * upper.stride + row];
        for entry in &mut right.data[row * right.stride..(row + 1) * right.stride] {
            *entry /= pivot;
        }
    }
}

/// Take multiples of the rows above away from a row, from a column on.
fn substitute(matrix: &mut Matrix, row: usize, factors: &[f64], first: usize) {
    let stride = matrix.stride;
    let (above, below) = matrix.data.split_at_mut(row * stride);
    let target = &mut below[..stride];
    let mut column = first;
    while column + PANEL <= stride {
        panel::<PANEL>(target, above, stride, column, factors);
        column += PANEL;
    }
    while column < stride {
        panel::<BLOCK>(target, above, stride, column, factors);
        column += BLOCK;
    }
}

#[inline]
fn panel<const WIDTH: usize>(target: &mut [f64], above: &[f64], stride: usize, column: usize, factors: &[f64]) {
    let mut sums: [f64; WIDTH] = *target[column..].first_chunk().expect("padded");
    for (line, factor) in above.chunks_exact(stride).zip(factors) {
        let line: &[f64; WIDTH] = line[column..].first_chunk().expect("padded");
        for (sum, value) in sums.iter_mut().zip(line) {
            *sum -= factor * value;
        }
    }
    target[column..column + WIDTH].copy_from_slice(&sums);
}

/// Factor a symmetric matrix as `L L'`; directions whose pivot is not positive are left out. Its lower part is read.
pub fn root(matrix: &Matrix) -> Matrix {
    let size = matrix.rows;
    let mut upper = Matrix::zeros(size, size);
    let mut factors = vec![0.0; size];
    for row in 0..size {
        for column in row..size {
            *upper.at_mut(row, column) = matrix.at(column, row);
        }
        for (index, factor) in factors[..row].iter_mut().enumerate() {
            *factor = upper.at(index, row);
        }
        substitute(&mut upper, row, &factors[..row], row / BLOCK * BLOCK);
        let pivot = upper.at(row, row);
        let scale = if pivot > 0.0 { 1.0 / pivot.sqrt() } else { 0.0 };
        let stride = upper.stride;
        for (column, entry) in upper.data[row * stride..(row + 1) * stride].iter_mut().enumerate() {
            *entry = if column < row { 0.0 } else { *entry * scale };
        }
    }
    upper.transposed()
}

/// For each column a of `columns` the squared length of `a' L` for a lower triangular L.
pub fn squared_lengths(columns: &Matrix, lower: &Matrix) -> Vec<f64> {
    let mut lengths = vec![0.0; columns.columns.next_multiple_of(BLOCK)];
    for row in (0..columns.columns).step_by(BLOCK) {
        for column in (0..lower.columns).step_by(BLOCK) {
            let sums = block(columns, row, lower, column, column);
            for (length, sum) in lengths[row..].iter_mut().zip(sums) {
                *length = sum.iter().fold(*length, |total, value| total + value * value);
            }
        }
    }
    lengths.truncate(columns.columns);
    lengths
}

/// Reflections that make a tall matrix upper triangular (Householder), kept to be applied to vectors later.
#[derive(Debug, Clone)]
pub struct Reflections {
    /// One row for each: the vector, whose entries before its own place are zero, and its factor.
    vectors: Vec<(Vec<f64>, f64)>,
}

impl Reflections {
    /// Make a matrix upper triangular in place.
    pub fn of(matrix: &mut Matrix) -> Self {
        let (rows, columns, stride) = (matrix.rows, matrix.columns, matrix.stride);
        let mut vectors = Vec::with_capacity(columns);
        for place in 0..columns {
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
        Self { vectors }
    }

    /// Turn a vector as the matrix was turned.
    pub fn apply(&self, target: &mut [f64]) {
        for (place, (vector, factor)) in self.vectors.iter().enumerate() {
            let sum = factor * dot(vector, &target[place..]);
            add(&mut target[place..], -sum, vector);
        }
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
