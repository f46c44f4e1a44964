//! Spanning trees over a list of ranks (the paper, §2.2): flat, k-ary and k-nomial.
//!
//! A tree is taken apart one level at a time: a node is given all members below it, and splits them into one list for
//! each child, of which the child is the first. So no two nodes need the same view of the participants.

use weir_proto::Rank;
use weir_proto::group::Tree;

/// Fewest children of a node that has more than one below it.
const BRANCHES_MIN: usize = 2;

/// Splits those below a node: one list for each child, the child first, then those below it.
#[must_use]
pub fn split(tree: Tree, below: &[Rank]) -> Vec<Vec<Rank>> {
    match tree {
        Tree::Flat => below.iter().map(|rank| vec![*rank]).collect(),
        Tree::Ary(k) => split_ary(usize::from(k).max(BRANCHES_MIN), below),
        Tree::Nomial(k) => split_nomial(usize::from(k).max(BRANCHES_MIN), below),
    }
}

/// Positions count from the node itself, which is 0. Children of position `i` are `i·k + 1 … i·k + k`. A child's list
/// is in the order of positions, which are the positions of a tree of the same kind again.
fn split_ary(k: usize, below: &[Rank]) -> Vec<Vec<Rank>> {
    let mut lists = vec![Vec::new(); k.min(below.len())];
    // For each position but the node's own: which child it is under.
    let mut under: Vec<usize> = Vec::with_capacity(below.len());
    for (at, rank) in below.iter().enumerate() {
        let parent = at / k;
        let child = if parent == 0 { at } else { under[parent - 1] };
        under.push(child);
        lists[child].push(*rank);
    }
    lists
}

/// Children are at `j·k^d` for each digit `d` and `j` from 1 to `k − 1`; below each are the `k^d − 1` positions after
/// it. Large subtrees come first: they take longest.
fn split_nomial(k: usize, below: &[Rank]) -> Vec<Vec<Rank>> {
    let nodes = below.len() + 1;
    let mut lists = Vec::new();
    let mut width = 1;
    while width < nodes {
        for j in 1..k {
            let start = j * width;
            if start >= nodes {
                break;
            }
            let end = (start + width).min(nodes);
            lists.push(below[start - 1..end - 1].to_vec());
        }
        let Some(next) = width.checked_mul(k) else { break };
        width = next;
    }
    lists.reverse();
    lists
}

/// Levels below a node of such a tree, when no member fails.
#[must_use]
pub fn depth(tree: Tree, below: &[Rank]) -> u32 {
    split(tree, below).iter().map(|list| 1 + depth(tree, &list[1..])).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn ranks(n: u32) -> Vec<Rank> {
        (1..n).map(Rank).collect()
    }

    /// Parent of each rank, where rank 0 is the root of ranks 0 to n − 1.
    fn parents(tree: Tree, n: u32) -> BTreeMap<u32, u32> {
        fn walk(tree: Tree, node: u32, below: &[Rank], parents: &mut BTreeMap<u32, u32>) {
            for list in split(tree, below) {
                let child = list[0].0;
                assert_eq!(parents.insert(child, node), None, "each has one parent");
                walk(tree, child, &list[1..], parents);
            }
        }
        let mut found = BTreeMap::new();
        walk(tree, 0, &ranks(n), &mut found);
        found
    }

    /// Writes a number to a base and clears its lowest digit that is not zero.
    fn nomial_parent(node: u32, k: u32) -> u32 {
        let mut width = 1;
        while (node / width).is_multiple_of(k) {
            width *= k;
        }
        node - node / width % k * width
    }

    #[test]
    fn depths_of_a_thousand_members_are_the_logarithms() {
        let below = ranks(1024);
        let cases = [
            (Tree::Flat, 1),
            (Tree::Ary(2), 10),
            (Tree::Ary(4), 5),
            (Tree::Ary(32), 2),
            (Tree::Nomial(2), 10),
            (Tree::Nomial(4), 5),
            (Tree::Nomial(32), 2),
        ];
        for (tree, expected) in cases {
            assert_eq!(depth(tree, &below), expected, "{tree:?}");
        }
        assert_eq!(split(Tree::Nomial(32), &below).len(), 62);
        assert_eq!(split(Tree::Nomial(2), &below).len(), 10);
        assert_eq!(split(Tree::Ary(3), &below).len(), 3);
        assert_eq!(depth(Tree::Nomial(0), &below), 10, "a base below two is two");
        assert!(split(Tree::Nomial(4), &[]).is_empty());
    }

    proptest! {
        #[test]
        fn trees_have_the_parents_that_the_field_gives_them(n in 1..700_u32, k in 2..40_u8) {
            let base = u32::from(k);
            for (tree, parent) in [
                (Tree::Flat, Box::new(|_: u32| 0_u32) as Box<dyn Fn(u32) -> u32>),
                (Tree::Ary(k), Box::new(move |node| (node - 1) / base)),
                (Tree::Nomial(k), Box::new(move |node| nomial_parent(node, base))),
            ] {
                let found = parents(tree, n);
                prop_assert_eq!(found.len(), usize::try_from(n - 1).expect("small"), "everybody is reached");
                for (node, of) in found {
                    prop_assert_eq!(of, parent(node), "{:?}: the parent of {}", tree, node);
                }
            }
        }
    }
}
