#pragma once

namespace stormo::cli {

/// The exit code for a program that has nothing more to print: kExitFailed instead of kExitOk, with
/// the cause on standard error, when standard output did not take everything. `first_error`: the
/// errno of a write that has failed before, 0 where none is known.
int finish_output(int exit_code, int first_error = 0);

}  // namespace stormo::cli
