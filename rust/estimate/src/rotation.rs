//! Leading directions of streams that move together, and products of small matrices, both in a fixed order.

use crate::error::Error;
use crate::filter::finite;

/// Most sweeps of the eigenvalue iteration; a handful are enough for any matrix, since it converges quadratically.
const SWEEPS: usize = 40;
/// Off-diagonal sum of squares, as a share of that of the diagonal, below which a matrix counts as diagonal.
const DIAGONAL: f64 = 1e-28;

/// The product of two matrices, given by rows: one sum for each entry, in the order of the inner index.
///
/// # Errors
///
/// If the lengths of rows do not fit, or a sum is not finite.
pub fn combined(left: &[Vec<f64>], right: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, Error> {
    let columns = right.first().map_or(0, Vec::len);
    if left.iter().any(|row| row.len() != right.len()) || right.iter().any(|row| row.len() != columns) {
        return Err(Error::parameter("rows", "of another length", "as many as the matrix has columns"));
    }
    let found: Vec<Vec<f64>> = left
        .iter()
        .map(|factors| {
            let mut sums = vec![0.0; columns];
            for (factor, row) in factors.iter().zip(right) {
                for (sum, value) in sums.iter_mut().zip(row) {
                    *sum += factor * value;
                }
            }
            sums
        })
        .collect();
    found.iter().try_for_each(|row| finite(row))?;
    Ok(found)
}

/// The orthonormal directions of a symmetric matrix of second moments, one in each row, the largest first.
///
/// Jacobi's method in the order of rows: the product of plane rotations is orthonormal whatever was rounded. Of equal
/// directions the earlier row comes first, and the largest entry of each is positive.
///
/// # Errors
///
/// If the matrix is not square, or an entry is not finite.
pub fn principal(moments: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, Error> {
    let size = moments.len();
    if moments.iter().any(|row| row.len() != size) {
        return Err(Error::parameter("moments", "not square", "a square matrix"));
    }
    let largest = moments.iter().flatten().fold(0.0_f64, |most, entry| most.max(entry.abs()));
    if !moments.iter().flatten().all(|entry| entry.is_finite()) {
        return Err(Error::NotFinite { largest: f64::MAX });
    }
    // Neither squares nor their sums leave the range of a double once the largest entry is one.
    let unit = if largest > 0.0 { 1.0 / largest } else { 0.0 };
    let mut matrix: Vec<Vec<f64>> = moments.iter().map(|row| row.iter().map(|entry| entry * unit).collect()).collect();
    let mut directions: Vec<Vec<f64>> =
        (0..size).map(|row| (0..size).map(|column| if row == column { 1.0 } else { 0.0 }).collect()).collect();
    for _ in 0..SWEEPS {
        if is_diagonal(&matrix) {
            break;
        }
        for first in 0..size {
            for second in first + 1..size {
                turn(&mut matrix, &mut directions, first, second);
            }
        }
    }
    let mut order: Vec<usize> = (0..size).collect();
    order.sort_by(|one, other| matrix[*other][*other].total_cmp(&matrix[*one][*one]));
    Ok(order.into_iter().map(|place| upright(&directions[place])).collect())
}

fn is_diagonal(matrix: &[Vec<f64>]) -> bool {
    let (mut within, mut beside) = (0.0, 0.0);
    for (row, entries) in matrix.iter().enumerate() {
        for (column, entry) in entries.iter().enumerate() {
            let sum = if row == column { &mut within } else { &mut beside };
            *sum += entry * entry;
        }
    }
    beside <= DIAGONAL * within
}

/// Make one entry beside the diagonal zero, by a rotation in the plane of its row and column.
fn turn(matrix: &mut [Vec<f64>], directions: &mut [Vec<f64>], first: usize, second: usize) {
    let beside = matrix[first][second];
    if beside == 0.0 {
        return;
    }
    let half = (matrix[second][second] - matrix[first][first]) / (2.0 * beside);
    let slope = if half.is_finite() { half.signum() / (half.abs() + (half * half + 1.0).sqrt()) } else { 0.0 };
    let cosine = 1.0 / (slope * slope + 1.0).sqrt();
    let sine = slope * cosine;
    for row in matrix.iter_mut() {
        let (one, other) = (row[first], row[second]);
        row[first] = cosine * one - sine * other;
        row[second] = sine * one + cosine * other;
    }
    for rows in [matrix, directions] {
        let (above, below) = rows.split_at_mut(second);
        for (one, other) in above[first].iter_mut().zip(&mut below[0]) {
            (*one, *other) = (cosine * *one - sine * *other, sine * *one + cosine * *other);
        }
    }
}

/// The same direction with its largest entry positive.
fn upright(direction: &[f64]) -> Vec<f64> {
    let mut largest = 0.0_f64;
    for entry in direction {
        if entry.abs() > largest.abs() {
            largest = *entry;
        }
    }
    direction.iter().map(|entry| entry * largest.signum()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn turned(rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
        (0..rows.first().map_or(0, Vec::len)).map(|column| rows.iter().map(|row| row[column]).collect()).collect()
    }

    #[test]
    fn streams_that_do_the_same_lead_together() {
        let moments = vec![vec![2.0, 2.0, 0.0], vec![2.0, 2.0, 0.0], vec![0.0, 0.0, 1.0]];
        let found = principal(&moments).unwrap();
        let half = 0.5_f64.sqrt();
        for (entry, expected) in found[0].iter().zip([half, half, 0.0]) {
            assert!((entry - expected).abs() < 1e-15);
        }
        assert_eq!(found[1], vec![0.0, 0.0, 1.0]);
    }

    #[test]
    fn what_moves_alone_is_left_alone() {
        assert_eq!(principal(&[vec![1.0, 0.0], vec![0.0, 1.0]]).unwrap(), vec![vec![1.0, 0.0], vec![0.0, 1.0]]);
        assert_eq!(principal(&[vec![0.0, 0.0], vec![0.0, 0.0]]).unwrap(), vec![vec![1.0, 0.0], vec![0.0, 1.0]]);
    }

    #[test]
    fn other_shapes_and_no_numbers_are_refused() {
        assert!(principal(&[vec![1.0, 0.0]]).is_err());
        assert!(principal(&[vec![f64::NAN]]).is_err());
        assert!(combined(&[vec![1.0]], &[vec![1.0], vec![2.0]]).is_err());
        assert!(combined(&[vec![1.0, 2.0]], &[vec![1.0], vec![2.0, 3.0]]).is_err());
    }

    proptest! {
        /// Directions are orthonormal and diagonalise, whatever the size of the entries.
        #[test]
        fn directions_are_orthonormal_and_diagonalise(
            values in proptest::collection::vec(-1.0_f64..1.0, 25), size in -150_i32..150
        ) {
            let rows: Vec<Vec<f64>> = values.chunks(5).map(<[f64]>::to_vec).collect();
            let square = combined(&rows, &turned(&rows)).unwrap();
            let scaled: Vec<Vec<f64>> =
                square.iter().map(|row| row.iter().map(|entry| entry * libm::pow(10.0, f64::from(size))).collect()).collect();
            let found = principal(&scaled).unwrap();
            let unit = combined(&found, &turned(&found)).unwrap();
            let diagonal = combined(&combined(&found, &square).unwrap(), &turned(&found)).unwrap();
            for row in 0..5 {
                for column in 0..5 {
                    let expected = if row == column { 1.0 } else { 0.0 };
                    prop_assert!((unit[row][column] - expected).abs() < 1e-13);
                    prop_assert!(row == column || diagonal[row][column].abs() < 1e-12);
                }
            }
            for place in 1..5 {
                prop_assert!(diagonal[place - 1][place - 1] >= diagonal[place][place] - 1e-12);
            }
        }
    }
}
