#pragma once

namespace stormo::python {

/// From now on Ctrl-C ends operations for which Python's main thread waits, with KeyboardInterrupt,
/// unless the program has a handler of its own for SIGINT. Once, by the main thread; starts a
/// thread.
void end_operations_by_interrupts();

/// Runs Python's handlers of signals that have come, on its main thread. Called without the GIL;
/// throws what they raise.
void check_signals();

}  // namespace stormo::python
