//! The examples on several ranks against the same on one.

#![forbid(unsafe_code)]

mod common;

use bellwether::World;
use bellwether_examples::cg::csr::Csr;
use bellwether_examples::cg::parallel::SharedMatrix;
use bellwether_examples::cg::solve::{self, Ending, Matrix, Solution, Whole, conjugate_gradients, true_residual};
use bellwether_examples::cg::{matrix_market, metis, model};
use bellwether_examples::heat::floor;
use bellwether_examples::heat::parallel::SharedPlate;
use bellwether_examples::heat::plate::{Hold, Plate};
use bellwether_examples::heat::serial::{self, Stop};

use common::{Over, threads};

const RANKS: [usize; 5] = [1, 2, 3, 5, 7];

/// The plate after `stop` on `ranks` ranks, and the plates seen on the way, every third step.
fn heat(over: Over, ranks: usize, plate: &Plate, stop: Stop) -> (Vec<f64>, u64, Vec<Vec<f64>>) {
    let run = |world: &World| {
        let root = (world.rank() == 0).then_some(plate);
        let mut shared = SharedPlate::scatter(world, root, 0.24)?;
        let mut seen = Vec::new();
        shared.run(stop, Some(3), |shared, step| -> bellwether::Result<()> {
            if step.is_multiple_of(3) {
                seen.extend(shared.gather()?);
            }
            Ok(())
        })?;
        let steps = shared.steps_done();
        let last = shared.gather()?;
        world.barrier()?;
        Ok(last.map(|last| (last, steps, seen)))
    };
    let outcomes: bellwether::Result<Vec<_>> = over.run(ranks, "heat2d", run).into_iter().collect();
    outcomes.unwrap().remove(0).expect("rank 0 gathers")
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn heat_equals_the_serial_run_bit_for_bit() {
    let plate = floor::plate(97, 61, Hold::Auto);
    let stop = |steps| Stop { steps, until_change: None };
    let (expected, _) = serial::run(&plate, 0.24, stop(50));
    let on_the_way: Vec<_> = (1..=16).map(|i| bits(&serial::run(&plate, 0.24, stop(3 * i)).0)).collect();
    for (over, ranks) in Over::BOTH.into_iter().flat_map(|over| RANKS.map(|ranks| (over, ranks))) {
        let (found, steps, seen) = heat(over, ranks, &plate, stop(50));
        assert_eq!(steps, 50);
        assert!(bits(&found) == bits(&expected), "{ranks} ranks, {over:?}");
        assert!(seen.iter().map(|plate| bits(plate)).eq(on_the_way.iter().cloned()), "{ranks} ranks, {over:?}, frames");
    }
}

#[test]
fn heat_with_few_rows_or_none_for_some_ranks() {
    for height in [1, 2, 3, 5] {
        let pixels = floor::pixels(40, 30).into_iter().skip(40 * 6).take(40 * height);
        let plate = Plate::from_pixels(40, height, pixels, Hold::Auto);
        let stop = Stop { steps: 40, until_change: None };
        let (expected, _) = serial::run(&plate, 0.24, stop);
        for (over, ranks) in Over::BOTH.into_iter().flat_map(|over| [1, 2, 3, 5, 7, 8].map(|ranks| (over, ranks))) {
            let (found, ..) = heat(over, ranks, &plate, stop);
            assert!(bits(&found) == bits(&expected), "{height} rows on {ranks} ranks, {over:?}");
        }
    }
}

#[test]
fn heat_stops_at_the_same_step_when_nothing_changes() {
    let plate = floor::plate(24, 16, Hold::Auto);
    let stop = Stop { steps: 100_000, until_change: Some(1e-3) };
    let (expected, steps) = serial::run(&plate, 0.24, stop);
    assert!(steps < 100_000 && steps.is_multiple_of(serial::CHECK_EVERY));
    for ranks in [2, 3] {
        let (found, found_steps, _) = heat(Over::Memory, ranks, &plate, stop);
        assert_eq!(found_steps, steps);
        assert!(bits(&found) == bits(&expected), "{ranks} ranks");
    }
}

const STOP: solve::Stop = solve::Stop { tolerance: 1e-10, iterations: 400 };

/// The result of each rank's solver, with the whole solution and the true residual.
fn cg(over: Over, ranks: usize, matrix: &Csr, b: &[f64]) -> (Vec<Solution>, Vec<f64>, f64) {
    let run = |world: &World| {
        let root = world.rank() == 0;
        let mut shared = SharedMatrix::scatter(world, root.then_some(matrix))?;
        let b = shared.scatter_vector(root.then_some(b))?;
        let solution = conjugate_gradients(&mut shared, &b, STOP, |_, _| ())?;
        let reached = true_residual(&mut shared, &b, &solution.x)?;
        let x = shared.gather_vector(&solution.x)?;
        world.barrier()?;
        bellwether::Result::Ok((solution, x, reached))
    };
    let outcomes: bellwether::Result<Vec<_>> = over.run(ranks, "cg", run).into_iter().collect();
    let mut outcomes = outcomes.unwrap();
    let (x, reached) = (outcomes[0].1.take().expect("rank 0 gathers"), outcomes[0].2);
    (outcomes.into_iter().map(|outcome| outcome.0).collect(), x, reached)
}

/// A random sparse matrix whose rows differ much in length: a graph with hubs.
fn hubs(rows: u32) -> Csr {
    let mut entries = Vec::new();
    for row in 0..rows {
        for step in [1, 7, 31] {
            let other = (row + step) % rows;
            entries.extend([(row, other, 1.0), (other, row, 1.0)]);
        }
        let hub = (row * row) % 5;
        if row > 40 {
            entries.extend([(row, hub, 2.0), (hub, row, 2.0)]);
        }
    }
    entries.sort_by_key(|entry| (entry.0, entry.1));
    entries.dedup_by_key(|entry| (entry.0, entry.1));
    entries.retain(|entry| entry.0 != entry.1);
    model::laplacian_plus_identity(&Csr::from_entries(rows as usize, &entries).unwrap())
}

#[test]
fn cg_agrees_with_the_serial_run() {
    let small = matrix_market::parse(include_str!("../data/small.mtx")).unwrap();
    let house = model::laplacian_plus_identity(&metis::parse(include_str!("../data/house.graph")).unwrap());
    for matrix in [model::poisson(23), hubs(500), small, house] {
        let expected = model::known_solution(matrix.rows());
        let mut b = vec![0.0; matrix.rows()];
        matrix.multiply(&expected, &mut b);
        let serial = conjugate_gradients(&mut Whole::new(&matrix), &b, STOP, |_, _| ()).unwrap();
        for ranks in RANKS {
            let (solutions, x, reached) = cg(Over::Memory, ranks, &matrix, &b);
            for solution in &solutions {
                assert_eq!(solution.ending, Ending::Converged, "{ranks} ranks");
                assert_eq!(bits(&solution.residuals), bits(&solutions[0].residuals), "all ranks see the same");
            }
            let found = &solutions[0].residuals;
            // Later residuals of the graph with hubs differ more: its outstanding eigenvalues amplify rounding.
            for (found, expected) in found.iter().zip(&serial.residuals).take(5) {
                assert!((found - expected).abs() <= 1e-12 * expected, "{ranks} ranks: {found} {expected}");
            }
            assert!(found.len().abs_diff(serial.residuals.len()) <= 2, "{ranks} ranks");
            assert!(reached < 2.0 * STOP.tolerance, "{ranks} ranks: {reached}");
            assert!(x.iter().zip(&expected).all(|(x, e)| (x - e).abs() < 1e-7), "{ranks} ranks");
            if ranks == 1 {
                assert_eq!((bits(&x), bits(found)), (bits(&serial.x), bits(&serial.residuals)));
            }
        }
    }
}

#[test]
fn cg_repeats_itself_for_one_number_of_ranks() {
    let matrix = hubs(300);
    let b = model::known_solution(300);
    for ranks in [2, 3, 7] {
        let residuals = |over| bits(&cg(over, ranks, &matrix, &b).0[0].residuals);
        let first = residuals(Over::Memory);
        (0..5).for_each(|_| assert_eq!(residuals(Over::Memory), first));
        assert_eq!(residuals(Over::Network), first);
    }
}

#[test]
fn multiplying_on_many_ranks_gives_the_same_vector() {
    for matrix in [hubs(500), model::poisson(9)] {
        let x = model::known_solution(matrix.rows());
        let mut expected = vec![0.0; matrix.rows()];
        matrix.multiply(&x, &mut expected);
        for ranks in RANKS {
            let found = threads(ranks, "multiplication", |world: &World| {
                let root = world.rank() == 0;
                let mut shared = SharedMatrix::scatter(world, root.then_some(&matrix)).unwrap();
                let part = shared.scatter_vector(root.then_some(&x)).unwrap();
                let mut image = vec![0.0; part.len()];
                // Ten times, so that a rank that runs ahead would be seen.
                for factor in 1..=10 {
                    let scaled: Vec<f64> = part.iter().map(|x| x * f64::from(factor)).collect();
                    shared.multiply(&scaled, &mut image).unwrap();
                }
                let image: Vec<f64> = image.iter().map(|y| y / 10.0).collect();
                let gathered = shared.gather_vector(&image).unwrap();
                world.barrier().unwrap();
                gathered
            });
            let found = found.into_iter().next().flatten().unwrap();
            assert!(found.iter().zip(&expected).all(|(f, e)| (f - e).abs() < 1e-9), "{ranks} ranks");
        }
    }
}
