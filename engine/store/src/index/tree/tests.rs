//! The tree against a sorted map, with frozen states that must not change.

use super::evict::below;
use super::*;
use crate::format::node::NODE_BYTES;
use crate::format::node::NODE_MAX;
use crate::format::record::Edit;
use core::ops::ControlFlow;
use proptest::prelude::*;
use std::collections::BTreeMap;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn scan(tree: &Tree) -> Result<Model, Missing> {
    let mut found = Model::new();
    tree.scan::<()>(b"", |key, value| {
        found.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn content(tree: &Tree) -> Model {
    scan(tree).expect("in memory")
}

/// The entries that leaves have, one leaf after the other.
fn content_of_leaves(tree: &Tree) -> Model {
    let (mut found, mut leaf) = (Model::new(), tree.leaf(b"").ok());
    while let Some(entries) = leaf.as_deref().map(Node::entries) {
        found.extend((0..entries.len()).map(|at| (entries.key(at), entries.value(at).to_vec())));
        leaf = entries.len().checked_sub(1).and_then(|last| tree.leaf_behind(&entries.key(last)));
    }
    found
}

/// Keys of several lengths, many of which begin alike.
fn key_of(number: u16) -> Vec<u8> {
    [&vec![b'k'; usize::from(number % 5) * 10][..], &number.to_be_bytes()].concat()
}

/// Sets an entry to a value of this length, or removes it, in tree and model.
fn change(tree: &mut Tree, model: &mut Model, number: u16, len: Option<usize>) {
    let key = key_of(number);
    if let Some(len) = len {
        let value = vec![(number & 0xff) as u8; len];
        assert_eq!(tree.put(&key, &value), Ok(model.get(&key).cloned()));
        model.insert(key, value);
    } else {
        assert_eq!(tree.remove(&key), Ok(model.remove(&key)));
    }
}

fn content_back(tree: &Tree) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let scanned = tree.scan_back::<()>(&[0xff; 8], |key, _| {
        found.push(key.to_vec());
        ControlFlow::Continue(())
    });
    scanned.expect("in memory");
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
            let depths: Vec<usize> =
                children.iter().map(|child| check_nodes(&child.node().expect("in memory"), false)).collect();
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
            pages(&child.node().expect("in memory"), found);
        }
    }
}

#[test]
fn keys_in_order_fill_their_nodes() {
    let mut tree = Tree::default();
    for number in 0..20_000u32 {
        tree.put(&number.to_be_bytes(), &[0; 20]).expect("in memory");
    }
    check_nodes(&tree.root, true);
    let bytes = 20_000 * (4 + 20 + 6);
    assert!(dirty_nodes(&tree.root).len() * NODE_BYTES < bytes * 5 / 4);
}

#[test]
fn emptied_trees_shrink_to_one_leaf() {
    let mut tree = Tree::default();
    for number in 0..5_000u32 {
        tree.put(&number.to_be_bytes(), &[1; 100]).expect("in memory");
    }
    for number in 0..5_000u32 {
        assert_eq!(tree.remove(&(number * 7919 % 5_000).to_be_bytes()), Ok(Some(vec![1; 100])));
    }
    assert_eq!(tree.len(), 0);
    assert_eq!(dirty_nodes(&tree.root).len(), 1);
}

#[test]
fn nodes_on_the_device_take_over_only_what_they_may() {
    let mut tree = Tree::default();
    // Long keys make branches of few children: some have leaves with one kind first, and then those of the other.
    let key = |kind: u8, number: u32| [&[kind; 500][..], &number.to_be_bytes()].concat();
    for (kind, number) in (0..400).flat_map(|number| [(1, number), (2, number)]) {
        tree.put(&key(kind, number), &[7; 2000]).expect("in memory");
    }
    let (root, _) = tree.freeze();
    persist(&root, &mut 0);
    drop(root);
    while tree.evict(0, below(&[2]), u64::MAX, usize::MAX) > 0 {}
    assert!(tree.get(&key(2, 0)).is_err(), "nothing was evicted");
    for number in (20..400).rev() {
        assert_eq!(tree.take(&key(1, number)), Ok(Some(vec![7; 2000])));
        tree.tidy(&key(1, number), |_, low| low >= [2].as_slice());
    }
    for number in 20..400 {
        assert_eq!(tree.put(&key(1, number), &[8; 2000]), Ok(None), "entry {number}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn behaves_like_a_sorted_map_and_frozen_states_stay(
        rounds in proptest::collection::vec(proptest::collection::vec((0u16..600, proptest::option::weighted(0.6, 0usize..3000)), 1..150), 1..6)
    ) {
        let mut tree = Tree::default();
        let mut model = Model::new();
        let mut frozen: Vec<(Tree, Model)> = Vec::new();
        let (mut next, mut live) = (0, std::collections::BTreeSet::new());
        for steps in rounds {
            for (number, len) in steps {
                change(&mut tree, &mut model, number, len);
                let key = key_of(number);
                prop_assert_eq!(tree.get(&key), Ok(model.get(&key).cloned()));
            }
            check_nodes(&tree.root, true);
            prop_assert_eq!(tree.len(), model.len() as u64);
            prop_assert_eq!(content(&tree), model.clone());
            prop_assert_eq!(content_of_leaves(&tree), model.clone());
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
            frozen.push((tree.still(), model.clone()));
        }
        for (still, model) in frozen {
            prop_assert_eq!(content(&still), model);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn runs_are_set_as_if_one_entry_came_behind_the_other(
        runs in proptest::collection::vec(
            (proptest::collection::vec((0u16..700, 0usize..900), 1..9), any::<bool>(), any::<bool>()), 1..150)
    ) {
        let (mut tree, mut model) = (Tree::default(), Model::new());
        for (run, sorted, freeze) in runs {
            let entry = |(number, len): (u16, usize)| {
                (key_of(number), vec![(number & 0xff) as u8; len])
            };
            let mut run: Vec<_> = run.into_iter().map(entry).collect();
            if sorted {
                run.sort();
            }
            let kept = freeze.then(|| tree.freeze());
            let edits: Vec<Edit<'_>> =
                run.iter().map(|(key, value)| Edit { key, value: Some(value) }).collect();
            tree.reach([edits[0].key]).expect("in memory");
            let mut rest = &edits[..];
            while !rest.is_empty() {
                let mut told = Vec::new();
                let done = tree.put_run(rest, |edit, old| told.push((edit, old.map(<[u8]>::to_vec))));
                let done = done.expect("in memory");
                prop_assert!(done > 0 && done == told.len());
                for (wanted, (edit, old)) in rest.iter().zip(told) {
                    prop_assert_eq!(*wanted, edit);
                    prop_assert_eq!(old, model.insert(edit.key.to_vec(), edit.value.expect("set").to_vec()));
                }
                rest = &rest[done..];
            }
            drop(kept);
        }
        check_nodes(&tree.root, true);
        prop_assert_eq!(tree.len(), model.len() as u64);
        prop_assert_eq!(content(&tree), model);
    }
}

/// Nodes as they are on a device.
#[derive(Default)]
struct Disk(BTreeMap<u64, Body>);

impl Disk {
    /// Writes what is dirty of the present state.
    fn checkpoint(&mut self, tree: &mut Tree) {
        let mut writing = Writing::begin(tree);
        while !self.write(tree, &mut writing, usize::MAX) {}
    }

    /// Finds so many more nodes of a checkpoint, or writes them when all are found. Returns whether they were the last ones.
    fn write(&mut self, tree: &Tree, writing: &mut Writing, count: usize) -> bool {
        if !writing.find(count) {
            return false;
        }
        for node in writing.nodes.drain(..count.min(writing.nodes.len())) {
            let block = self.0.last_key_value().map_or(1, |(last, _)| last + 1);
            let body = match &node.body {
                Body::Leaf(entries) => Body::Leaf(entries.clone()),
                Body::Branch(keys, children) => {
                    let children = children.iter().map(|child| Child::stored(child.page().expect("written")));
                    Body::Branch(keys.clone(), children.collect())
                }
            };
            self.0.insert(block, body);
            node.home.page.set(Some(PageRef { block, len: 1, crc: 0 }));
            tree.release(&node);
        }
        let is_done = writing.nodes.is_empty();
        if is_done {
            for page in writing.retired.drain(..).filter_map(|home| home.page.get()) {
                assert!(self.0.remove(&page.block).is_some(), "page {} was retired twice", page.block);
            }
        }
        is_done
    }

    /// All entries, wherever they are.
    fn content(&self, tree: &Tree) -> Model {
        self.ask(tree, scan).0
    }

    /// Asks until nothing is missing; returns the answer and how many nodes were read.
    fn ask<T>(&self, tree: &Tree, mut question: impl FnMut(&Tree) -> Result<T, Missing>) -> (T, usize) {
        let mut reads = 0;
        loop {
            tree.begin(3);
            match question(tree) {
                Ok(answer) => return (answer, reads),
                Err(Missing(nodes)) => {
                    assert!(!nodes.is_empty(), "something must be missing");
                    for (key, page) in nodes {
                        reads += 1;
                        tree.install(&key, page, self.0[&page.block].clone()).expect("it fits");
                    }
                }
            }
        }
    }
}

/// A checkpoint that is being written.
struct Writing {
    walk: DirtyNodes,
    nodes: std::collections::VecDeque<Rc<Node>>,
    retired: Vec<Rc<Home>>,
    root: Rc<Home>,
}

impl Writing {
    fn begin(tree: &mut Tree) -> Self {
        let (root, retired) = tree.freeze();
        let home = Rc::clone(&root.home);
        Self { walk: DirtyNodes::new(root), nodes: std::collections::VecDeque::new(), retired, root: home }
    }

    /// Goes so many steps on. Returns whether all nodes are found.
    fn find(&mut self, steps: usize) -> bool {
        for _ in 0..steps {
            let Some(found) = self.walk.next() else { return true };
            self.nodes.extend(found);
        }
        false
    }
}

/// Bytes that the nodes in memory take, counted by a walk.
fn memory(node: &Rc<Node>) -> usize {
    let below = match &node.body {
        Body::Leaf(_) => 0,
        Body::Branch(_, children) => {
            children.iter().filter_map(|child| child.node().ok()).map(|child| memory(&child)).sum()
        }
    };
    below + node.charged()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn behaves_the_same_when_nodes_come_and_go(
        rounds in proptest::collection::vec((
            proptest::collection::vec((0u16..900, proptest::option::weighted(0.6, 0usize..1500)), 1..120),
            0usize..200_000,
        ), 1..8)
    ) {
        let (mut tree, mut model, mut disk) = (Tree::default(), Model::new(), Disk::default());
        for (steps, limit) in rounds {
            for (number, len) in steps {
                let key = key_of(number);
                disk.ask(&tree, |tree| tree.reach([key.as_slice()]));
                change(&mut tree, &mut model, number, len);
            }
            disk.checkpoint(&mut tree);
            let before = tree.tick();
            tree.evict(limit, below(b""), u64::MAX, usize::MAX);
            prop_assert!(tree.meter().bytes() <= limit.max(memory(tree.root())));
            prop_assert_eq!(tree.meter().bytes(), memory(tree.root()));
            let forward = disk.content(&tree);
            prop_assert_eq!(&forward, &model);
            // What was used since is kept, however little memory there is.
            tree.evict(0, below(b""), before, usize::MAX);
            let (_, reads) = disk.ask(&tree, |tree| tree.scan::<()>(b"", |_, _| ControlFlow::Continue(())));
            prop_assert_eq!(reads, 0);
            tree.evict(0, below(b""), u64::MAX, usize::MAX);
            let (back, reads) = disk.ask(&tree, |tree| {
                let mut found = Vec::new();
                tree.scan_back::<()>(&[0xff; 8], |key, _| {
                    found.push(key.to_vec());
                    ControlFlow::Continue(())
                })?;
                Ok(found)
            });
            prop_assert_eq!(back, model.keys().rev().cloned().collect::<Vec<_>>());
            // All but the root had gone, and each came back once.
            prop_assert_eq!(reads + 1, disk.0.len());
            // Leaf by leaf one comes as far as nodes are in memory, and never passes one over.
            tree.evict(limit, below(b""), u64::MAX, usize::MAX);
            let known = content_of_leaves(&tree);
            prop_assert!(known.iter().eq(model.iter().take(known.len())));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_a_checkpoint_has_written_is_as_it_was_at_its_begin_and_let_go(
        steps in proptest::collection::vec(
            (proptest::collection::vec((0u16..900, proptest::option::weighted(0.7, 0usize..1500)), 1..40), 0usize..12, any::<bool>()), 20..60)
    ) {
        let (mut tree, mut model, mut disk) = (Tree::default(), Model::new(), Disk::default());
        let mut under_way: Option<(Writing, Model)> = None;
        for (changes, count, evicts) in steps {
            for (number, len) in changes {
                let key = key_of(number);
                disk.ask(&tree, |tree| tree.reach([key.as_slice()]));
                change(&mut tree, &mut model, number, len);
            }
            let (mut writing, begun) =
                under_way.take().unwrap_or_else(|| (Writing::begin(&mut tree), model.clone()));
            if disk.write(&tree, &mut writing, count) {
                let Writing { root, .. } = writing;
                let body = disk.0[&root.page.get().expect("written").block].clone();
                let (root, meter) = (Node::new(body, &Meter::default()), Meter::default());
                prop_assert_eq!(disk.content(&Tree::new(root, 0, meter)), begun);
                prop_assert_eq!(tree.meter().bytes(), memory(tree.root()));
            } else {
                under_way = Some((writing, begun));
            }
            if evicts {
                tree.evict(0, below(b""), u64::MAX, usize::MAX);
            }
            prop_assert!(tree.meter().bytes() >= memory(tree.root()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_freeze_that_is_taken_back_leaves_all_as_it_was(
        rounds in proptest::collection::vec(
            (proptest::collection::vec((0u16..900, proptest::option::weighted(0.7, 0usize..1500)), 1..40), 0usize..60, 0u8..4), 5..40)
    ) {
        let (mut tree, mut model, mut disk) = (Tree::default(), Model::new(), Disk::default());
        let (mut twin, mut of_twin, mut next) = (Tree::default(), Model::new(), 0);
        for (changes, steps, what) in rounds {
            let mut writing = Writing::begin(&mut tree);
            let found = writing.find(steps);
            if what == 0 {
                persist(&twin.freeze().0, &mut next);
            }
            for (number, len) in changes {
                let key = key_of(number);
                disk.ask(&tree, |tree| tree.reach([key.as_slice()]));
                change(&mut tree, &mut model, number, len);
                change(&mut twin, &mut of_twin, number, len);
            }
            if what == 0 {
                while !disk.write(&tree, &mut writing, usize::MAX) {}
            } else {
                let Writing { walk, nodes, retired, .. } = writing;
                prop_assert!(!found || nodes.len() <= tree.unplaced_nodes());
                drop((walk, nodes));
                tree.thaw(retired);
                prop_assert_eq!(tree.unplaced_nodes(), 0);
            }
            // Nothing is counted twice, however often that happens.
            prop_assert!(dirty_nodes(&tree.root).len() <= tree.dirty_nodes());
            prop_assert!(tree.dirty_nodes() <= twin.dirty_nodes());
            prop_assert_eq!(disk.content(&tree), model.clone());
        }
        disk.checkpoint(&mut tree);
        // What is written and not retired is exactly what the tree consists of.
        let mut reachable = Vec::new();
        disk.content(&tree);
        pages(&tree.root, &mut reachable);
        prop_assert_eq!(reachable.into_iter().collect::<std::collections::BTreeSet<_>>(), disk.0.into_keys().collect());
    }
}

/// Memory of nodes that have left the tree.
fn left(tree: &Tree) -> usize {
    tree.meter().bytes() - memory(tree.root())
}

#[test]
fn nodes_are_copied_only_until_a_checkpoint_has_written_them() {
    let (mut tree, mut disk) = (Tree::default(), Disk::default());
    // Neighbours that have much in common, and others nothing, make branches of some eighty children.
    let key = |number: u32| [&(number / 16).to_be_bytes()[..], &[7; 400], &number.to_be_bytes()].concat();
    let set = |tree: &mut Tree, numbers: core::ops::Range<u32>, value: u8| {
        for number in numbers {
            tree.put(&key(number), &[value; 1800]).expect("in memory");
        }
    };
    set(&mut tree, 0..8_000, 1);
    let mut writing = Writing::begin(&mut tree);
    assert!(writing.find(usize::MAX));
    let count = writing.nodes.len();
    assert!(!disk.write(&tree, &mut writing, count / 2));
    let before = tree.meter().bytes();
    set(&mut tree, 0..3_600, 2);
    let branches = 12 * NODE_BYTES;
    assert!(
        left(&tree) <= branches && tree.meter().bytes() < before + before / 8,
        "written ones were copied"
    );
    set(&mut tree, 4_400..8_000, 2);
    let copies = left(&tree);
    assert!(copies > before / 3, "others need to be");
    assert!(!disk.write(&tree, &mut writing, count / 4));
    assert!(left(&tree) < copies * 2 / 3, "copies stay");
    assert!(disk.write(&tree, &mut writing, count));
    assert_eq!(left(&tree), 0);
}

#[test]
fn changes_that_were_reached_together_apply_together() {
    let (mut tree, mut disk) = (Tree::default(), Disk::default());
    for number in 0..600u32 {
        tree.put(&number.to_be_bytes(), &[7; 2000]).expect("in memory");
    }
    disk.checkpoint(&mut tree);
    tree.evict(0, below(b""), u64::MAX, usize::MAX);
    // All of some leaf goes, and more comes to its place; the nodes around it are on the device.
    let keys: Vec<[u8; 4]> = (300..310u32).map(u32::to_be_bytes).collect();
    disk.ask(&tree, |tree| tree.reach(keys.iter().map(<[u8; 4]>::as_slice)));
    for key in &keys {
        tree.take(key).expect("reached").expect("there");
    }
    for key in &keys {
        assert_eq!(tree.put(key, b"new"), Ok(None));
    }
    for key in &keys {
        tree.tidy(key, |_, _| true);
    }
    assert_eq!(tree.len(), 600);
    let (found, _) = disk.ask(&tree, |tree| {
        let mut found = 0;
        tree.scan::<()>(b"", |_, _| {
            found += 1;
            ControlFlow::Continue(())
        })?;
        Ok(found)
    });
    assert_eq!(found, 600);
}

#[test]
fn nodes_before_the_floor_stay_and_the_rest_goes_bit_by_bit() {
    let (mut tree, mut disk) = (Tree::default(), Disk::default());
    for number in 0..20_000u32 {
        tree.put(&number.to_be_bytes(), &[7; 50]).expect("in memory");
    }
    disk.checkpoint(&mut tree);
    let floor = 5_000u32.to_be_bytes();
    let all = tree.meter().bytes();
    let mut sweeps = 0;
    while tree.evict(0, below(&floor), u64::MAX, 100) > 0 || sweeps < 200 {
        sweeps += 1;
    }
    assert!(tree.meter().bytes() < all / 3, "{} of {all} bytes stay", tree.meter().bytes());
    for number in 0..5_000u32 {
        assert!(tree.get(&number.to_be_bytes()).expect("in memory").is_some(), "key {number}");
    }
    assert!(tree.get(&15_000u32.to_be_bytes()).is_err());
}

#[test]
fn leaves_with_what_an_open_needs_stay() {
    let (mut tree, mut disk) = (Tree::default(), Disk::default());
    for number in 0..20_000u32 {
        tree.put(&number.to_be_bytes(), &[7; 50]).expect("in memory");
    }
    disk.checkpoint(&mut tree);
    let [from, to] = [15_000u32, 15_500].map(u32::to_be_bytes);
    let pinned = Pinned { below: b"", among: [&from, &to] };
    while tree.evict(0, pinned, u64::MAX, usize::MAX) > 0 {}
    for number in 15_000..15_500u32 {
        assert!(tree.get(&number.to_be_bytes()).is_ok_and(|found| found.is_some()), "key {number}");
    }
    assert!([10_000u32, 16_000].iter().all(|number| tree.get(&number.to_be_bytes()).is_err()));
}

#[test]
fn a_key_that_is_unlike_all_others_of_its_leaf_leaves_no_node_too_large() {
    let long = [b'k'; 400];
    for unlike in [&b"a"[..], b"kk", b"z"] {
        let mut tree = Tree::default();
        // The second time they come to a leaf whose keys share all but the end, as it does once it was split.
        for number in (0..100u32).map(|number| number * 1000).chain((1..300).map(|number| number * 7)) {
            let key = [&long[..], &number.to_be_bytes()].concat();
            tree.put(&key, &[7; 30]).expect("in memory");
        }
        let count = tree.len();
        tree.put(unlike, b"value").expect("in memory");
        check_nodes(tree.root(), true);
        assert_eq!(tree.len(), count + 1);
        assert_eq!(content(&tree).len() as u64, count + 1);
    }
}

#[test]
fn entries_of_all_lengths_are_split_into_nodes_that_are_small_enough() {
    let mut tree = Tree::default();
    for (key, len) in [(10u32, 5170), (30, 5900), (40, 5100), (20, 5900)] {
        tree.put(&key.to_be_bytes(), &vec![7; len]).expect("in memory");
        check_nodes(tree.root(), true);
    }
}

#[test]
fn nothing_can_be_evicted_only_when_the_hand_has_come_round() {
    let (mut tree, mut disk) = (Tree::default(), Disk::default());
    for number in 0..20_000u32 {
        tree.put(&number.to_be_bytes(), &[7; 50]).expect("in memory");
    }
    let rounds = |tree: &Tree| {
        let mut sweeps = 1;
        while tree.evict(0, below(b""), u64::MAX, 20) == 0 && !tree.is_swept() {
            sweeps += 1;
        }
        sweeps
    };
    // All waits for a checkpoint.
    assert!(rounds(&tree) > 10);
    assert!(tree.is_swept());
    disk.checkpoint(&mut tree);
    tree.sweep_anew();
    tree.begin(0);
    tree.scan::<()>(b"", |_, _| ControlFlow::Continue(())).expect("in memory");
    // Those that were used are spared once, in many sweeps that evict nothing.
    assert!(rounds(&tree) > 10);
    assert!(!tree.is_swept());
}

#[test]
fn a_node_that_belongs_elsewhere_is_refused() {
    let (mut tree, mut disk) = (Tree::default(), Disk::default());
    for number in 0..2_000u32 {
        tree.put(&number.to_be_bytes(), &[7; 50]).expect("in memory");
    }
    disk.checkpoint(&mut tree);
    tree.evict(0, below(b""), u64::MAX, usize::MAX);
    let at = |number: u32| {
        let Err(Missing(nodes)) = tree.get(&number.to_be_bytes()) else { panic!("it was evicted") };
        nodes[0].clone()
    };
    let ((key, page), (_, other)) = (at(10), at(1_500));
    assert!(tree.install(&key, page, disk.0[&other.block].clone()).is_err());
    assert!(tree.install(&key, page, disk.0[&page.block].clone()).is_ok());
    assert!(tree.get(&10u32.to_be_bytes()).expect("in memory").is_some());
}
