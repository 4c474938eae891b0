//! `mamba export` and `mamba import`: weights from one format to another.

use crate::args::{ExportArgs, ExportDtype, FormatName, ImportArgs};
use crate::error::{CliError, Result, io};
use crate::report::{count, print_line};
use crate::weights::{self, Source};
use mamba_model::MambaWeights;
use std::path::Path;

/// Runs `export`.
pub fn export(args: &ExportArgs) -> Result<()> {
    refuse_existing(&args.out)?;
    if args.format == FormatName::Native && args.dtype != ExportDtype::F32 {
        return Err(CliError::Flag {
            flag: "--dtype",
            value: format!("{:?}", args.dtype).to_lowercase(),
            expected: "f32 for native files",
        });
    }
    let model = match args.format {
        FormatName::Hf => weights::load_lm(&args.model, "export --format hf")?,
        FormatName::StateSpaces => weights::load_lm(&args.model, "export --format state-spaces")?,
        FormatName::Native => weights::load(&args.model)?,
    };
    make_parent(&args.out)?;
    weights::export(&model, args.format, args.dtype, &args.out)?;
    wrote(&model, &args.out);
    Ok(())
}

/// Runs `import`.
pub fn import(args: &ImportArgs) -> Result<()> {
    refuse_existing(&args.out)?;
    match weights::detect(&args.from)? {
        Source::Run(path) | Source::State(path) | Source::Native(path) => {
            return Err(CliError::Foreign { path });
        }
        Source::Pretrained(_) => {}
    }
    let model = weights::load(&args.from)?;
    make_parent(&args.out)?;
    weights::save(&args.out, &model)?;
    wrote(&model, &args.out);
    Ok(())
}

fn refuse_existing(path: &Path) -> Result<()> {
    match path.exists() {
        true => Err(CliError::Exists { path: path.to_owned() }),
        false => Ok(()),
    }
}

fn make_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(Path::new(""));
    std::fs::create_dir_all(parent).map_err(io(parent, "create"))
}

fn wrote(model: &MambaWeights, path: &Path) {
    let table = model.table();
    let tensors = count(table.iter().len() as u64, "tensor");
    let parameters = count(table.param_count() as u64, "parameter");
    print_line(&format!("wrote {}: {tensors}, {parameters}", path.display()));
}
