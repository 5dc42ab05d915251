//! Measures how deep a compiler of JSON schemas may recurse through nested values and `$ref`s, and finds schemas that
//! apply themselves to the same value without end.

use std::collections::HashMap;

use serde_json::Value;

/// Returns the length of the longest chain of objects and arrays from the root of `schema`. Each member of the chain is
/// nested in the member before it, or is the target of that member's `$ref`. A cycle counts with all its members, since
/// a compiler that follows every reference once may visit them all.
pub fn longest_chain(schema: &Value) -> usize {
    let edges = edges(schema, |node| parts(node).chain(referred(schema, node)).collect());
    if edges.is_empty() {
        return 0;
    }
    longest_path(&edges)
}

/// Returns whether a part of `schema` applies itself to the same value again, through `$ref` and `allOf` alone. No
/// value satisfies such a part, because checking it never ends.
pub fn applies_itself(schema: &Value) -> bool {
    let edges =
        edges(schema, |node| node.get("allOf").into_iter().flat_map(parts).chain(referred(schema, node)).collect());
    // Repeatedly removes nodes that no remaining node refers to. This leaves only the nodes of cycles and the nodes
    // that can be reached from a cycle.
    let mut referring = vec![0; edges.len()];
    edges.iter().flatten().for_each(|&to| referring[to] += 1);
    let mut free: Vec<usize> = (0..edges.len()).filter(|&node| referring[node] == 0).collect();
    let mut removed = 0;
    while let Some(node) = free.pop() {
        removed += 1;
        for &to in &edges[node] {
            referring[to] -= 1;
            if referring[to] == 0 {
                free.push(to);
            }
        }
    }
    removed < edges.len()
}

/// Numbers all objects and arrays of `schema`, the root first. Returns for each of them the numbers of the nodes that
/// `next` returns for it.
fn edges<'a>(schema: &'a Value, next: impl Fn(&'a Value) -> Vec<&'a Value>) -> Vec<Vec<usize>> {
    let (mut numbers, mut nodes) = (HashMap::new(), Vec::new());
    add(schema, &mut numbers, &mut nodes);
    let number = |value: &Value| numbers.get(&(value as *const Value)).copied();
    nodes.iter().map(|&node| next(node).into_iter().filter_map(number).collect()).collect()
}

/// Returns the target of the object's `$ref`, if it has one.
fn referred<'a>(schema: &'a Value, node: &Value) -> Option<&'a Value> {
    named(schema, node.get("$ref")?.as_str()?)
}

fn parts(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => Box::new(std::iter::empty()),
    }
}

/// Numbers all objects and arrays. The recursion is bounded by the depth of the JSON, which serde_json limits to 128.
fn add<'a>(value: &'a Value, numbers: &mut HashMap<*const Value, usize>, nodes: &mut Vec<&'a Value>) {
    if value.is_array() || value.is_object() {
        numbers.insert(value as *const Value, nodes.len());
        nodes.push(value);
        parts(value).for_each(|part| add(part, numbers, nodes));
    }
}

/// Returns the value to which llguidance resolves a reference: a path from the root, without escapes.
fn named<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    if reference == "#" || reference == "#/" {
        return Some(root);
    }
    reference.strip_prefix("#/")?.split('/').try_fold(root, |place, name| match place {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        _ => place.get(name),
    })
}

/// Returns the length of the longest path, with Tarjan's strongly connected components and without recursion. A
/// component is completed after all components that it leads to, so their longest paths are known by then.
fn longest_path(edges: &[Vec<usize>]) -> usize {
    const NEW: usize = usize::MAX;
    let count = edges.len();
    let (mut order, mut low, mut open, mut longest) =
        (vec![NEW; count], vec![0; count], vec![false; count], vec![0; count]);
    let (mut found, mut stack, mut walk) = (0, Vec::new(), vec![(0, 0)]);
    while let Some((node, next)) = walk.last_mut() {
        let node = *node;
        if order[node] == NEW {
            (order[node], low[node], open[node]) = (found, found, true);
            found += 1;
            stack.push(node);
        }
        if let Some(&to) = edges[node].get(*next) {
            *next += 1;
            if order[to] == NEW {
                walk.push((to, 0));
            } else if open[to] {
                low[node] = low[node].min(order[to]);
            }
            continue;
        }
        walk.pop();
        if let Some(&(parent, _)) = walk.last() {
            low[parent] = low[parent].min(low[node]);
        }
        if low[node] == order[node] {
            let start = stack.iter().rposition(|&member| member == node).unwrap_or(0);
            let members = stack.split_off(start);
            // The members of this component have length 0 so far, so the maximum is over edges that leave the
            // component.
            let below = members.iter().flat_map(|&member| &edges[member]).map(|&to| longest[to]).max().unwrap_or(0);
            for &member in &members {
                open[member] = false;
                longest[member] = members.len() + below;
            }
        }
    }
    longest[0]
}
