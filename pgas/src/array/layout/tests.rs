use super::*;

fn distributions(parts: usize) -> Vec<Distribution> {
    use Distribution::*;
    vec![Block, Cyclic, BlockCyclic(1), BlockCyclic(3), Uneven((0..parts).map(|part| 1.0 + part as f64).collect())]
}

/// Every element is at one place, every place has one element, every rank counts what it has.
fn one_to_one<const D: usize>(layout: &Layout<D>) {
    let extents = layout.extents();
    let mut counts = vec![0; layout.ranks()];
    let mut places = std::collections::BTreeSet::new();
    for number in 0..layout.len() {
        let mut rest = number;
        let mut index = [0; D];
        for d in (0..D).rev() {
            index[d] = rest % extents[d];
            rest /= extents[d];
        }
        let (rank, local) = layout.locate(index).expect("inside");
        assert_eq!(layout.global(rank, local), Some(index), "{layout}");
        assert!(places.insert((rank, local)), "{layout}: two elements at {local:?} of rank {rank}");
        counts[rank] += 1;
    }
    for (rank, count) in counts.into_iter().enumerate() {
        assert_eq!(layout.extents_at(rank).iter().product::<usize>(), count, "{layout}: rank {rank}");
        assert_eq!(layout.rank_at(layout.place_of(rank)), Some(rank));
        assert_eq!(layout.global(rank, layout.extents_at(rank)), None);
        if let Some(region) = layout.box_at(rank) {
            assert_eq!(region.extents, layout.extents_at(rank));
            assert!(region.is_empty() || layout.locate(region.start) == Some((rank, [0; D])), "{layout}");
        }
    }
}

#[test]
fn every_layout_is_one_to_one() {
    for ranks in 1..=7 {
        for extent in [1, 2, 5, 13, 64] {
            for distribution in distributions(ranks) {
                one_to_one(&Layout::new([extent], [distribution], ranks).expect("fits"));
            }
        }
        for extents in [[1, 1], [4, 9], [17, 3]] {
            let grid = near_square(ranks, [0; 2]).expect("a grid");
            for first in distributions(grid[0]) {
                for second in distributions(grid[1]) {
                    one_to_one(&Layout::on_grid(extents, [first.clone(), second], grid, ranks).expect("fits"));
                }
            }
        }
        for distribution in distributions(1) {
            let kinds = [Distribution::Block, distribution, Distribution::Cyclic];
            one_to_one(&Layout::on_grid([5, 3, 9], kinds, [1, 1, ranks], ranks).expect("fits"));
        }
        one_to_one(&Layout::block([6, 5, 7], ranks).expect("fits"));
    }
}

#[test]
fn an_index_outside_has_no_rank() {
    let layout = Layout::block([4, 6], 2).expect("fits");
    assert_eq!(layout.rank_of([3, 5]), Some(1));
    assert_eq!(layout.rank_of([4, 0]), None);
    assert_eq!(layout.rank_of([0, 6]), None);
    assert_eq!(layout.rank_of([usize::MAX, usize::MAX]), None);
    assert_eq!(layout.rank_at([2, 0]), None);
}

#[test]
fn what_does_not_fit_names_both_sides() {
    use Distribution::*;
    let told = |layout: Result<Layout<2>>, parts: &[&str]| {
        let error = layout.expect_err("does not fit").to_string();
        parts.iter().for_each(|part| assert!(error.contains(part), "{error}: no {part:?}"));
    };
    told(Layout::block([0, 5], 2), &["[0, 5]"]);
    told(Layout::block([usize::MAX, 2], 2), &["18446744073709551615, 2"]);
    told(Layout::block([1 << 62, 2], 2), &["4611686018427387904, 2"]);
    told(Layout::on_grid([4, 4], [Block, Block], [2, 2], 3), &["[2, 2]", "3"]);
    told(Layout::on_grid([4, 4], [Block, Block], [0, 2], 0), &["[0, 2]"]);
    told(Layout::on_grid([4, 4], [Block, BlockCyclic(0)], [1, 2], 2), &["dimension 1"]);
    told(Layout::on_grid([4, 4], [Uneven(vec![1.0]), Block], [2, 1], 2), &["1 weights", "2 parts"]);
    told(Layout::new([4, 4], [Uneven(vec![1.0; 4]), Block], 6), &["[4, 0]", "6 ranks"]);
    told(Layout::new([4, 4], [Uneven(vec![]), Block], 2), &["0 weights"]);
    told(Layout::new([4, 4], [Uneven(vec![1.0, -2.0]), Block], 2), &["-2"]);
    told(Layout::new([4, 4], [Uneven(vec![1.0, f64::NAN]), Block], 2), &["NaN"]);
    told(Layout::new([4, 4], [Uneven(vec![f64::INFINITY, 1.0]), Block], 2), &["inf"]);
    told(Layout::new([4, 4], [Uneven(vec![0.0; 2]), Block], 2), &["all are zero"]);
    told(Layout::new([4, 4], [Sizes(vec![1, 2]), Block], 2), &["2 sizes that sum to 3", "2 parts of 4"]);
    told(Layout::on_grid([4, 4], [Sizes(vec![4]), Block], [2, 1], 2), &["1 sizes", "2 parts"]);
    told(Layout::new([4, 4], [Sizes(vec![usize::MAX, 5]), Block], 2), &["more than there can be"]);
}

#[test]
fn boxes_are_where_indices_are_neighbours() {
    use Distribution::*;
    let layout = Layout::new([9, 4], [Sizes(vec![0, 6, 3]), Block], 6).expect("fits");
    assert_eq!(layout.box_at(3), Some(Region { start: [0, 2], extents: [6, 2] }));
    assert_eq!(layout.box_at(1), Some(Region { start: [0, 2], extents: [0, 2] }));
    assert_eq!(Layout::new([9, 4], [Cyclic, Block], 2).expect("fits").box_at(0), None);
}
