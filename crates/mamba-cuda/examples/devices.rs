//! Lists the GPUs of this machine, or says why there are none.

fn main() {
    match mamba_cuda::devices() {
        Ok(found) => {
            for d in found {
                let (major, minor) = d.capability;
                println!(
                    "{}: {} (compute {major}.{minor}, {} SMs, {} MiB)",
                    d.ordinal,
                    d.name,
                    d.multiprocessors,
                    d.memory >> 20
                );
            }
        }
        Err(error) => println!("{error}"),
    }
}
