//! `--numa`: the NUMA nodes for the huge pages of a copy, and the nodes on which text lies.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

use crate::value::ValueError;

/// The NUMA nodes for the huge pages of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numa {
    /// On all nodes by turns, one huge page each.
    Interleave,
    /// On the node of the processor on which the program's first thread runs.
    Local,
    /// On this node.
    Node(u32),
}

impl FromStr for Numa {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let bad = || ValueError::new("interleave, local or node=N", text);
        match text {
            "interleave" => Ok(Self::Interleave),
            "local" => Ok(Self::Local),
            _ => {
                let number = text.strip_prefix("node=").ok_or_else(bad)?;
                number.parse().map(Self::Node).map_err(|_no_number| bad())
            }
        }
    }
}

impl fmt::Display for Numa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interleave => f.write_str("interleave"),
            Self::Local => f.write_str("local"),
            Self::Node(node) => write!(f, "node={node}"),
        }
    }
}

/// A node that nothing can be placed on.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("node {node} has no memory for this process, only: {}", Listed(.usable))]
pub struct NoSuchNode {
    node: u32,
    usable: Vec<u32>,
}

struct Listed<'a>(&'a [u32]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&nodes.join(", "))
    }
}

impl Numa {
    /// Returns the nodes that take huge pages by turns; none if there is only one node to choose from.
    /// `usable` are the nodes with memory that this process may have; `home` is the node of the program.
    ///
    /// # Errors
    /// The node is not usable.
    pub fn turns(self, usable: &[u32], home: u32) -> Result<Vec<u32>, NoSuchNode> {
        let turns = match self {
            Self::Interleave => usable.to_vec(),
            Self::Local => vec![home],
            Self::Node(node) => vec![node],
        };
        match turns.iter().find(|node| !usable.contains(node)) {
            Some(&node) => Err(NoSuchNode { node, usable: usable.to_vec() }),
            None if usable.len() == 1 => Ok(Vec::new()),
            None => Ok(turns),
        }
    }
}

/// Parses a list as the kernel prints it for nodes and processors: `0-2,5`; `None` for anything else.
pub fn parse_list(text: &str) -> Option<Vec<u32>> {
    /// More than any kernel is built for (`CONFIG_NODES_SHIFT` is at most 10).
    const MOST: u32 = 1 << 13;
    let mut list = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST {
            return None;
        }
        list.extend(first..=last);
    }
    Some(list)
}

/// Bytes on one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct OnNode {
    /// The node's number.
    pub node: u32,
    /// Bytes of mapped pages that lie there.
    pub bytes: u64,
}

/// Adds up the bytes on the same nodes; the lowest node first.
pub fn sum(parts: impl IntoIterator<Item = OnNode>) -> Vec<OnNode> {
    let mut nodes: BTreeMap<u32, u64> = BTreeMap::new();
    for OnNode { node, bytes } in parts {
        let sum = nodes.entry(node).or_default();
        *sum = sum.saturating_add(bytes);
    }
    nodes.into_iter().map(|(node, bytes)| OnNode { node, bytes }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numactls() {
        for text in ["interleave", "local", "node=0", "node=7"] {
            assert_eq!(text.parse::<Numa>().unwrap().to_string(), text);
        }
        for bad in ["", "node", "node=", "node=x", "node=-1", "1", "interleave=all", "Local"] {
            let error = bad.parse::<Numa>().unwrap_err().to_string();
            assert!(error.contains("interleave, local or node=N"), "{error}");
        }
    }

    #[test]
    fn turns_are_of_nodes_that_have_memory() {
        assert_eq!(Numa::Interleave.turns(&[0, 2], 1), Ok(vec![0, 2]));
        assert_eq!(Numa::Local.turns(&[0, 2], 2), Ok(vec![2]));
        assert_eq!(Numa::Node(0).turns(&[0, 2], 2), Ok(vec![0]));
        let error = Numa::Node(7).turns(&[0, 2], 0).unwrap_err().to_string();
        assert_eq!(error, "node 7 has no memory for this process, only: 0, 2");
        assert!(Numa::Local.turns(&[0], 1).is_err());
        for only in [Numa::Interleave, Numa::Local, Numa::Node(3)] {
            assert_eq!(only.turns(&[3], 3), Ok(vec![]), "nothing to choose");
        }
    }

    #[test]
    fn lists_of_the_kernel() {
        assert_eq!(parse_list("0-1,3\n"), Some(vec![0, 1, 3]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        for bad in ["x", "1-", "3-1", "0-4294967295", "1--2", "-1"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_lies_on_one_node_is_summed() {
        let on = |node, bytes| OnNode { node, bytes };
        assert_eq!(sum([on(1, 2), on(0, 4), on(1, u64::MAX)]), [on(0, 4), on(1, u64::MAX)]);
    }
}
