#pragma once

namespace trireme::cli {

/// Prints the GPUs, the driver, and the libraries that training on a GPU opens, and runs one of our
/// kernels. Returns false, with the remedy printed, if there is a GPU that training cannot use.
bool report_gpus();

}  // namespace trireme::cli
