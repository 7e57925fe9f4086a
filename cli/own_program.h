#pragma once

#include <string>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::cli {

/// The program is two: `stormo`, which starts without libtorch, and stormo-train, which has it.
inline constexpr const char* kTrainProgram = "stormo-train";

/// Commands that only `stormo` gives to stormo-train: as `train` and `strads train`, but only check
/// the run and print a CheckedRun; prints TorchFacts.
inline constexpr const char* kCheckCommand = "check-train";
inline constexpr const char* kCheckStradsCommand = "check-strads-train";
inline constexpr const char* kFactsCommand = "torch-facts";

/// The file that this process runs.
Result<std::string> own_program();

/// The words that this process was started with, without its name.
Result<std::vector<std::string>> own_arguments();

/// The file of `stormo`: this process's own, or that of the installation or build it belongs to.
Result<std::string> launching_program();

}  // namespace stormo::cli
