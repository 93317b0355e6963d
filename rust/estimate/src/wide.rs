//! Functions that are compiled for wide vectors too, and use them where the processor has them.
//!
//! Vectors run across elements, each of which has one accumulator, and products are never fused with sums: the width of a
//! vector changes how long a function takes and no bit of what it returns.

/// Define functions whose bodies run with AVX2 where the processor has it, and as they are elsewhere.
macro_rules! wide {
    ($($(#[$attribute:meta])* $visibility:vis fn $name:ident ($($argument:ident: $type:ty),* $(,)?) $(-> $made:ty)? $body:block)*) => {
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
                    if std::arch::is_x86_feature_detected!("avx2") {
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
