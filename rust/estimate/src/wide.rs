//! Functions that are compiled for wide vectors too, and use them where the processor has them.
//!
//! Vectors run across elements, each of which has one accumulator, and products are never fused with sums: the width of a
//! vector changes how long a function takes and no bit of what it returns.

/// Whether the processor has wide vectors.
#[cfg(target_arch = "x86_64")]
pub fn is_wide() -> bool {
    #[cfg(test)]
    if tests::NARROW.get() {
        return false;
    }
    std::arch::is_x86_feature_detected!("avx2")
}

/// Define functions whose bodies run with AVX2 where the processor has it, and as they are elsewhere.
macro_rules! wide {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident ($($argument:ident: $type:ty),* $(,)?) $(-> $made:ty)? $body:block
    )*) => {
        $(
            $(#[$attribute])*
            $visibility fn $name ($($argument: $type),*) $(-> $made)? {
                #[inline(always)]
                #[allow(clippy::inline_always, reason = "a body that is called is not compiled for wide vectors")]
                fn plain($($argument: $type),*) $(-> $made)? $body

                #[cfg(target_arch = "x86_64")]
                {
                    #[target_feature(enable = "avx2")]
                    fn with_avx2($($argument: $type),*) $(-> $made)? {
                        plain($($argument),*)
                    }
                    if crate::wide::is_wide() {
                        // SAFETY: the function is safe, and the processor has what it is compiled for.
                        #[allow(unsafe_code, reason = "the compiler cannot know what the processor has")]
                        return unsafe { with_avx2($($argument),*) };
                    }
                }
                plain($($argument),*)
            }
        )*
    };
}

pub(crate) use wide;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use crate::{Filter, revised};

    thread_local! {
        pub static NARROW: Cell<bool> = const { Cell::new(false) };
    }

    /// All that a filter learns and says of some periods, as bits.
    fn learnt(cells: &[Vec<usize>], narrow: bool) -> Vec<u8> {
        NARROW.set(narrow);
        let mut filter = Filter::new(60, 3, true, true, None).expect("valid");
        let mut seed = 5_u64;
        let (mut bits, mut history) = (Vec::new(), Vec::new());
        for period in 0..9 {
            let mut value = |_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                f64::from(u32::try_from(seed >> 40).expect("24 bits")) / 1e5
            };
            let values = cells.iter().map(&mut value).collect();
            let measured = filter.measurement(period, cells.to_vec(), values, vec![7.0; cells.len()]).expect("valid");
            let (found, understood) = filter.update(measured).expect("valid");
            bits.extend(found.means.iter().chain(&found.variances).flat_map(|value| value.to_le_bytes()));
            history.push(understood);
        }
        for found in revised(&filter, &history).expect("valid") {
            bits.extend(found.means.iter().chain(&found.variances).flat_map(|value| value.to_le_bytes()));
        }
        NARROW.set(false);
        bits.extend(filter.to_bytes());
        bits
    }

    #[test]
    fn the_width_of_a_vector_changes_no_bit() {
        let steps: Vec<Vec<usize>> = (0..60).map(|step| vec![step]).collect();
        let overlapping = vec![(0..50).collect(), (7..60).collect(), vec![3, 5, 59]];
        for cells in [steps, overlapping] {
            assert!(learnt(&cells, true) == learnt(&cells, false));
        }
    }
}
