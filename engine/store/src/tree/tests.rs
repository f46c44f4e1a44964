//! The tree against a sorted map, with frozen states that must not change.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn content(tree: &Tree) -> Model {
    let mut found = Model::new();
    tree.scan::<()>(b"", |key, value| {
        found.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    });
    found
}

fn content_back(tree: &Tree) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    tree.scan_back::<()>(&[0xff; 8], |key, _| {
        found.push(key.to_vec());
        ControlFlow::Continue(())
    });
    found
}

fn check_nodes(node: &Node, is_root: bool) -> usize {
    assert!(node.size() <= NODE_MAX, "a node of {} bytes", node.size());
    match &node.body {
        Body::Leaf(entries) => {
            assert!(is_root || !entries.is_empty());
            1
        }
        Body::Branch(keys, children) => {
            assert_eq!(keys.len(), children.len());
            assert!(keys.key(0).is_empty());
            let depths: Vec<usize> = children.iter().map(|child| check_nodes(child, false)).collect();
            assert!(depths.windows(2).all(|pair| pair[0] == pair[1]), "leaves at different depths");
            depths[0] + 1
        }
    }
}

/// Pretends that a checkpoint wrote every node of a frozen state.
fn persist(root: &Rc<Node>, next: &mut u64) -> Vec<PageRef> {
    let nodes = dirty_nodes(root);
    nodes
        .iter()
        .map(|node| {
            *next += 1;
            let page = PageRef { block: *next, len: 1, crc: 0 };
            node.home.page.set(Some(page));
            page
        })
        .collect()
}

fn pages(node: &Node, found: &mut Vec<u64>) {
    found.push(node.home.page.get().expect("a clean node").block);
    if let Body::Branch(_, children) = &node.body {
        for child in children {
            pages(child, found);
        }
    }
}

#[test]
fn keys_in_order_fill_their_nodes() {
    let mut tree = Tree::default();
    for number in 0..20_000u32 {
        tree.put(&number.to_be_bytes(), &[0; 20]);
    }
    check_nodes(&tree.root, true);
    let bytes = 20_000 * (4 + 20 + 6);
    assert!(dirty_nodes(&tree.root).len() * NODE_BYTES < bytes * 5 / 4);
}

#[test]
fn emptied_trees_shrink_to_one_leaf() {
    let mut tree = Tree::default();
    for number in 0..5_000u32 {
        tree.put(&number.to_be_bytes(), &[1; 100]);
    }
    for number in 0..5_000u32 {
        assert_eq!(tree.remove(&(number * 7919 % 5_000).to_be_bytes()), Some(vec![1; 100]));
    }
    assert_eq!(tree.len(), 0);
    assert_eq!(dirty_nodes(&tree.root).len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn behaves_like_a_sorted_map_and_frozen_states_stay(
        rounds in proptest::collection::vec(proptest::collection::vec((0u16..600, proptest::option::weighted(0.6, 0usize..3000)), 1..150), 1..6)
    ) {
        let mut tree = Tree::default();
        let mut model = Model::new();
        let mut frozen: Vec<(Rc<Node>, Model)> = Vec::new();
        let (mut next, mut live) = (0, std::collections::BTreeSet::new());
        for steps in rounds {
            for (number, len) in steps {
                let mut key = vec![b'k'; usize::from(number % 5) * 10];
                key.extend(number.to_be_bytes());
                if let Some(len) = len {
                    let value = vec![(number & 0xff) as u8; len];
                    prop_assert_eq!(tree.put(&key, &value), model.get(&key).cloned());
                    model.insert(key.clone(), value);
                } else {
                    prop_assert_eq!(tree.remove(&key), model.remove(&key));
                }
                prop_assert_eq!(tree.get(&key), model.get(&key).map(Vec::as_slice));
            }
            check_nodes(&tree.root, true);
            prop_assert_eq!(tree.len(), model.len() as u64);
            prop_assert_eq!(content(&tree), model.clone());
            prop_assert_eq!(content_back(&tree), model.keys().rev().cloned().collect::<Vec<_>>());
            let bound = tree.dirty_nodes();
            let (root, retired) = tree.freeze();
            prop_assert!(dirty_nodes(&root).len() <= bound);
            // What is written and not retired is exactly what the frozen state consists of.
            live.extend(persist(&root, &mut next).iter().map(|page| page.block));
            for home in retired {
                if let Some(page) = home.page.get() {
                    prop_assert!(live.remove(&page.block), "page {} was retired twice", page.block);
                }
            }
            let mut reachable = Vec::new();
            pages(&root, &mut reachable);
            prop_assert_eq!(reachable.into_iter().collect::<std::collections::BTreeSet<_>>(), live.clone());
            frozen.push((root, model.clone()));
        }
        for (root, model) in frozen {
            prop_assert_eq!(content(&Tree::new(root, model.len() as u64)), model);
        }
    }
}
