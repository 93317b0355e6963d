//! Speed of the samplers on one thread, per value.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use optstream_core::batch;
use optstream_core::cube::CubeScale;
use optstream_core::ratio::Ratio;
use optstream_core::rng::{Key, Source};
use optstream_core::scale::Scale;

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

criterion_group!(benches, samplers);
criterion_main!(benches);
