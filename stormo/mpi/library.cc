#include <stormo/mpi/library.h>

#include <fmt/format.h>

namespace stormo::mpi {

Result<Library*> Library::open() {
  static Library library;
  static const Status ready = library.initialise();
  if (!ready.ok()) return ready;
  return &library;
}

Library::~Library() {
  // else: leaving without MPI_Finalize tells mpirun to end the job, which waits for this rank
  if (ours_ && unfinished_ == 0) MPI_Finalize();
}

Status Library::initialise() {
  int initialised = 0;
  int level = MPI_THREAD_SINGLE;
  STORMO_RETURN_IF_ERROR(call("MPI_Initialized", [&] { return MPI_Initialized(&initialised); }));
  if (initialised != 0) {
    STORMO_RETURN_IF_ERROR(call("MPI_Query_thread", [&] { return MPI_Query_thread(&level); }));
  } else {
    STORMO_RETURN_IF_ERROR(call("MPI_Init_thread", [&] {
      return MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
    }));
    ours_ = true;
  }
  if (level >= MPI_THREAD_SERIALIZED) return {};
  return {Code::kRefused,
          "MPI was initialised without MPI_THREAD_SERIALIZED, but operations run on threads: call "
          "MPI_Init_thread with it, leave the initialisation to join_mpi(), or use an MPI that was "
          "built with threads"};
}

Status Library::to_status(std::string_view name, int code) {
  if (code == MPI_SUCCESS) return {};
  int error_class = MPI_ERR_UNKNOWN;
  int length = 0;
  char text[MPI_MAX_ERROR_STRING] = {};
  MPI_Error_class(code, &error_class);
  MPI_Error_string(code, text, &length);
  // more arrived than was expected: the ranks do not agree on a size
  return {error_class == MPI_ERR_TRUNCATE ? Code::kMismatch : Code::kIo,
          fmt::format("{}: {}", name, text)};
}

}  // namespace stormo::mpi
