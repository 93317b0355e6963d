//! The order in which a forest is walked, found without recursion, since a tree may be as deep as it is large.

use std::ops::Range;

use crate::Error;

/// The nodes with every subtree before its root and siblings in the order of their indices.
///
/// Walking from the roots, each time to the last child first, lists the nodes in exactly the opposite order.
pub(super) fn postorder(parents: &[Option<usize>]) -> Result<Vec<usize>, Error> {
    let (starts, children) = children(parents)?;
    let mut stack: Vec<usize> = (0..parents.len()).filter(|&node| parents[node].is_none()).collect();
    let mut order = Vec::with_capacity(parents.len());
    while let Some(node) = stack.pop() {
        order.push(node);
        stack.extend_from_slice(&children[starts[node]..starts[node + 1]]);
    }
    if order.len() < parents.len() {
        return Err(cycle(parents, &order));
    }
    order.reverse();
    Ok(order)
}

/// The children of node `i` are entries `starts[i]..starts[i + 1]` of the second list, in the order of their indices.
fn children(parents: &[Option<usize>]) -> Result<(Vec<usize>, Vec<usize>), Error> {
    let count = parents.len();
    let mut starts = vec![0; count + 2];
    for (node, parent) in parents.iter().enumerate().filter_map(|(node, parent)| Some((node, (*parent)?))) {
        if parent >= count {
            return Err(Error::entry("parents", node, parent, format!("below the number of nodes, {count}")));
        }
        starts[parent + 2] += 1;
    }
    for node in 0..count {
        starts[node + 2] += starts[node + 1];
    }
    let mut children = vec![0; starts[count + 1]];
    for (node, parent) in parents.iter().enumerate().filter_map(|(node, parent)| Some((node, (*parent)?))) {
        // Until its last child is placed, entry `parent + 1` is where the next child goes.
        children[starts[parent + 1]] = node;
        starts[parent + 1] += 1;
    }
    Ok((starts, children))
}

/// The error for links among which no root was found from at least one node.
fn cycle(parents: &[Option<usize>], reached: &[usize]) -> Error {
    let mut is_reached = vec![false; parents.len()];
    for &node in reached {
        is_reached[node] = true;
    }
    // Whoever cannot be reached from a root has a cycle above, and as many steps as there are nodes lead onto it.
    let start = is_reached.iter().position(|reached| !reached).unwrap_or(0);
    let node = (0..parents.len()).fold(start, |node, _| parents[node].unwrap_or(node));
    Error::entry("parents", node, parents[node].unwrap_or(node), "no descendant of the node itself")
}

/// The inner nodes with their leaves, as positions and ranges of the list of leaves, given in postorder.
pub(super) fn leaf_ranges(parent: &[usize], is_leaf: &[bool]) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut below = vec![0; parent.len() + 1];
    let mut seen = 0;
    (0..parent.len()).filter_map(move |at| {
        if is_leaf[at] {
            below[at] = 1;
            seen += 1;
        }
        below[parent[at]] += below[at];
        (!is_leaf[at]).then(|| (at, seen - below[at]..seen))
    })
}
