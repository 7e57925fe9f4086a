#pragma once

namespace stormo::train {

/// The launcher of this process has ended before it began. Call before a StopSignal of a member is
/// made: SIGTERM is for all ranks then, whoever sends it.
void expect_no_launcher();

}  // namespace stormo::train
