//! The share of nodes on which a rule acts: a rollout in steps, and the nodes that are held out for comparison.
//!
//! Each agent decides about its own node by a hash, so the agents need no coordinator. A node that is in a share is in
//! each larger share too, so that a larger share never removes a node from a rollout.

use std::fmt;
use std::str::FromStr;

/// All nodes, in hundredths of a percent.
const ALL: u16 = 10_000;

/// A share of all nodes, such as `5%` or `0.25%`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NodeShare(u16);

impl Default for NodeShare {
    fn default() -> Self {
        Self(ALL)
    }
}

impl fmt::Display for NodeShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 100.0)
    }
}

impl FromStr for NodeShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("nodes {text:?} is not a share of the nodes, such as \"5%\"");
        let number = text.strip_suffix('%').ok_or_else(wrong)?;
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str, most| {
            (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !digits(whole, 3) || !digits(part, 2) {
            return Err(wrong());
        }
        let (whole, part) = (whole.parse::<u16>(), format!("{part:0<2}").parse::<u16>());
        let share = whole.map_err(|_range| wrong())? * 100 + part.map_err(|_range| wrong())?;
        if share > ALL { Err(wrong()) } else { Ok(Self(share)) }
    }
}

impl NodeShare {
    /// Returns whether the node belongs to the share. Two rules with the same share choose different nodes.
    pub fn has(self, rule: &str, node: &str) -> bool {
        let mut hasher = blake3::Hasher::new();
        // A rule's name has no slash, so that no other pair of rule and node gives the same bytes.
        hasher.update(rule.as_bytes()).update(b"/").update(node.as_bytes());
        let digest = hasher.finalize();
        let number =
            digest.as_bytes().iter().take(8).fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
        number % u64::from(ALL) < u64::from(self.0)
    }

    /// Returns whether this node belongs to the share.
    pub fn has_this_node(self, rule: &str) -> bool {
        self.0 == ALL || self.has(rule, &this_node())
    }
}

/// Returns the name of this node: `NODE_NAME`, which Kubernetes sets, or else the host name.
fn this_node() -> String {
    let name = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    name.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(text: &str) -> NodeShare {
        text.parse().unwrap()
    }

    #[test]
    fn a_share_is_a_percentage() {
        for (text, shown) in [("5%", "5%"), ("0.25%", "0.25%"), ("99.9%", "99.9%"), ("0%", "0%")] {
            assert_eq!(share(text).to_string(), shown);
        }
        assert_eq!(share("100%"), NodeShare::default());
        for odd in
            ["5", "%", "-1%", "101%", "100.01%", "1.234%", "1.%", ".5%", "+5%", "5 %", "1e1%"]
        {
            assert!(odd.parse::<NodeShare>().unwrap_err().contains("5%"), "{odd}");
        }
    }

    #[test]
    fn no_share_has_no_node_and_the_whole_has_each() {
        for node in 0..100 {
            let node = format!("node-{node}");
            assert!(!share("0%").has("a", &node) && share("100%").has("a", &node));
        }
    }
}
