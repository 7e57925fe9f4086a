#pragma once

namespace stormo::cli {

/// The exit code for a program that has nothing more to print: kExitFailed instead of kExitOk, with
/// the cause on standard error, when standard output did not take everything.
int finish_output(int exit_code);

}  // namespace stormo::cli
