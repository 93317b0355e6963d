//! The trees that the tests are run on.

use proptest::prelude::*;

/// Parent links, `None` at roots.
pub type Parents = Vec<Option<usize>>;

/// 48 steps, the cells `[0, 14) [14, 24) [24, 36) [36, 48)`, and their total.
pub fn day() -> Parents {
    let cells = [14, 10, 12, 12].into_iter().zip(48..).flat_map(|(steps, cell)| std::iter::repeat_n(Some(cell), steps));
    cells.chain([Some(52); 4]).chain([None]).collect()
}

/// A root with `leaves` children.
pub fn star(leaves: usize) -> Parents {
    std::iter::once(None).chain(std::iter::repeat_n(Some(0), leaves)).collect()
}

/// The complete binary tree in which node `i` has the children `2 i + 1` and `2 i + 2`.
pub fn binary(nodes: usize) -> Parents {
    (0..nodes).map(|node: usize| node.checked_sub(1).map(|above| above / 2)).collect()
}

/// A path of `length` inner nodes, each with one leaf of its own, that ends in a leaf.
pub fn caterpillar(length: usize) -> Parents {
    let spine = (0..=length).map(|node: usize| node.checked_sub(1));
    spine.chain((0..length).map(Some)).collect()
}

/// A tree with the given number of children per node at each level, in breadth-first order.
pub fn levels(branching: &[usize]) -> Parents {
    let mut parents = vec![None];
    let mut level = 0..1;
    for &children in branching {
        let first = parents.len();
        parents.extend(level.flat_map(|node| std::iter::repeat_n(Some(node), children)));
        level = first..parents.len();
    }
    parents
}

/// Forests of up to `nodes` nodes of any shape, numbered in any order.
pub fn any_forest(nodes: usize) -> impl Strategy<Value = Parents> {
    (1..=nodes)
        .prop_flat_map(|nodes| {
            let links = (0..nodes).map(|node| prop::option::weighted(0.9, 0..node.max(1))).collect::<Vec<_>>();
            (links, Just((0..nodes).collect::<Vec<_>>()).prop_shuffle())
        })
        .prop_map(|(links, name)| {
            let mut parents = vec![None; name.len()];
            for (node, link) in links.into_iter().enumerate().skip(1) {
                parents[name[node]] = link.map(|parent| name[parent]);
            }
            parents
        })
}

/// Which nodes are leaves.
pub fn leaves(parents: &[Option<usize>]) -> Vec<bool> {
    let mut leaves = vec![true; parents.len()];
    for &parent in parents.iter().flatten() {
        leaves[parent] = false;
    }
    leaves
}

/// The nodes with every parent before its children.
pub fn top_down(parents: &[Option<usize>]) -> Vec<usize> {
    let mut children = vec![vec![]; parents.len()];
    for (node, parent) in parents.iter().enumerate() {
        if let Some(parent) = parent {
            children[*parent].push(node);
        }
    }
    let mut order: Vec<usize> = (0..parents.len()).filter(|&node| parents[node].is_none()).collect();
    let mut next = 0;
    while next < order.len() {
        order.extend_from_slice(&children[order[next]]);
        next += 1;
    }
    order
}
