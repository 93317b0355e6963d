//! Speed of the samplers on one thread, per value.

use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use optstream_core::batch;
use optstream_core::cube::CubeScale;
use optstream_core::gaussian::Deviation;
use optstream_core::ratio::Ratio;
use optstream_core::rng::{Key, Source};
use optstream_core::scale::Scale;
use optstream_core::svt::{L1Sampler, SparseVector, Unit};

const VALUES: usize = 1 << 15;

fn scale(numerator: u64, denominator: u64) -> Scale {
    let epsilon = Ratio::new("epsilon", denominator.into(), numerator.into()).expect("a positive ratio");
    Scale::new(1, &epsilon).expect("a scale that fits")
}

fn samplers(c: &mut Criterion) {
    let mut group = c.benchmark_group("per value");
    group.throughput(Throughput::Elements(VALUES as u64)).sample_size(20);
    group.bench_function("keystream word", |b| {
        let mut stream = Key::from_entropy().expect("entropy").stream(0);
        b.iter(|| (0..VALUES).fold(0, |bits, _| bits ^ stream.word()));
    });
    for (name, numerator, denominator) in [
        ("1", 1, 1),
        ("3/2", 3, 2),
        ("1000", 1000, 1),
        ("2^20+7", (1 << 20) + 7, 1),
        ("2^40", 1 << 40, 1),
        ("2^52", 1 << 52, 1),
    ] {
        let key = Key::from_entropy().expect("entropy");
        let scale = scale(numerator, denominator);
        group.bench_function(format!("laplace, scale {name}"), |b| {
            b.iter_batched_ref(
                || vec![0; VALUES],
                |values| batch::laplace(values, &scale, &key, 1),
                BatchSize::LargeInput,
            );
        });
    }
    for (name, numerator, denominator) in [("1", 1, 1), ("3/2", 3, 2), ("1000", 1000, 1), ("2^40", 1 << 40, 1)] {
        let key = Key::from_entropy().expect("entropy");
        let deviation = Deviation::new(scale(numerator, denominator));
        group.bench_function(format!("gaussian, sigma {name}"), |b| {
            b.iter_batched_ref(
                || vec![0; VALUES],
                |values| batch::gaussian(values, &deviation, &key, 1),
                BatchSize::LargeInput,
            );
        });
    }
    for length in [8, 64, 1024] {
        let key = Key::from_entropy().expect("entropy");
        let scale = CubeScale::new(scale(1 << 20, 1), length).expect("a block that fits");
        group.bench_function(format!("cube, scale 2^20, blocks of {length}"), |b| {
            b.iter_batched_ref(
                || vec![0; VALUES],
                |values| batch::cube(values, &scale, &key, 1),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

/// One segment that grows over the whole period, as the threshold is out of reach: time per step should hardly grow.
fn adaptive(c: &mut Criterion) {
    let mut group = c.benchmark_group("adaptive sampling, per step");
    group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    let mut stream = Key::from_entropy().expect("entropy").stream(0);
    for bits in 10..=17 {
        let length = 1_usize << bits;
        let values: Vec<i64> =
            (0..length).map(|_| i64::try_from(stream.below(1 << 20)).expect("a small number")).collect();
        let vector = SparseVector::new(scale(1 << 20, 1), scale(1 << 21, 1), 1);
        let sampler = L1Sampler::new(length, 3, 1 << 62, vector, Unit::Common).expect("a valid sampler");
        group.throughput(Throughput::Elements(length as u64));
        group.bench_function(format!("2^{bits} steps"), |b| b.iter(|| sampler.sample(&values, &mut stream)));
    }
    group.finish();
}

criterion_group!(benches, samplers, adaptive);
criterion_main!(benches);
