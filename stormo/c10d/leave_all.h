#pragma once

namespace stormo::c10d {

class StormoBackend;

/// Notes a backend of this process for leave_all(), from its constructor to its destructor. (A weak
/// reference would put the destructor off.)
void add_living(StormoBackend& backend);
void remove_living(StormoBackend& backend);

/// Leaves all groups of this process, before it ends. Groups wait for what is pending side by side,
/// so this takes as long as the slowest one, and then its world.
void leave_all();

}  // namespace stormo::c10d
