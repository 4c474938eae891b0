//! Parameters: the one table that names them, their initialisation, and the flat arena that holds them.

mod init;
mod table;
mod weights;

pub use init::Init;
pub use table::{ALIGN, LayerParams, Param, ParamTable, Span, Storage};
pub use weights::MambaWeights;
