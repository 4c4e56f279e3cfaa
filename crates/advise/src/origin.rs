//! Where, when and by which version figures were measured.

use serde::{Deserialize, Serialize};

/// The origin of the figures in a JSON. A part is `None` if an earlier version wrote the JSON.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Origin {
    /// The name of the host.
    pub host: Option<String>,
    /// The processor and the kernel.
    pub machine: Option<String>,
    /// The end of the measurement (UTC).
    pub date: Option<String>,
    /// The version of TiExec.
    pub version: Option<String>,
}
