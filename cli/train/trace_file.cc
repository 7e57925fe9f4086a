#include <cli/train/trace_file.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <utility>
#include <vector>

#include <cli/train/host_clocks.h>
#include <stormo/base/replace_file.h>
#include <stormo/observe/trace.h>

namespace stormo::cli {
namespace {

constexpr std::uint32_t kTraceTag = 0x7472;
constexpr Duration kLook = std::chrono::milliseconds(50);

/// On rank 0: the traces of all ranks. A collective.
Result<std::vector<observe::RankTrace>> gather_traces(comm::Communicator& world,
                                                      observe::RankTrace mine) {
  std::string bytes = observe::serialize(mine);
  auto size = static_cast<std::int64_t>(bytes.size());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(
      world.all_gather({&size, 1, DType::kInt64}, {sizes.data(), world.size(), DType::kInt64}));
  if (world.rank() != 0) {
    STORMO_RETURN_IF_ERROR(world.send({bytes.data(), size, DType::kUInt8}, 0, kTraceTag));
    return std::vector<observe::RankTrace>();
  }
  std::vector<observe::RankTrace> traces = {std::move(mine)};
  for (Rank from = 1; from < world.size(); ++from) {
    std::string theirs(static_cast<std::size_t>(sizes[static_cast<std::size_t>(from)]), '\0');
    const auto count = static_cast<std::int64_t>(theirs.size());
    STORMO_RETURN_IF_ERROR(world.recv({theirs.data(), count, DType::kUInt8}, from, kTraceTag));
    STORMO_ASSIGN_OR_RETURN(observe::RankTrace trace, observe::parse_rank_trace(theirs));
    traces.push_back(std::move(trace));
  }
  return traces;
}

Status write(const std::string& path, const std::vector<observe::RankTrace>& traces) {
  const Status written =
      replace_file(path, [&](std::ostream& file) { observe::write_chrome_trace(file, traces); });
  return written.ok() ? written : io_error("cannot write the trace to '" + path + "'");
}

}  // namespace

std::string trace_part_path(const std::string& path, int rank) {
  if (rank == 0) return path;
  const std::filesystem::path whole(path);
  const std::string name =
      whole.stem().string() + ".rank" + std::to_string(rank) + whole.extension().string();
  return (whole.parent_path() / name).string();
}

TraceFile::TraceFile(comm::Communicator& world, std::string path, bool watch)
    : world_(world), path_(std::move(path)), sink_(world.rank(), world.host()) {
  if (watch) watcher_ = std::thread([this] { watch_group(); });
}

TraceFile::~TraceFile() {
  if (!finished_) write_part();
  stop_watching();
}

void TraceFile::stop_watching() {
  stopping_ = true;
  if (watcher_.joinable()) watcher_.join();
}

void TraceFile::watch_group() {
  while (!stopping_) {
    if (!world_.status().ok()) return write_part();
    std::this_thread::sleep_for(kLook);
  }
}

void TraceFile::write_part() {
  // the launcher ends the ranks of a failed job: not before this is written
  std::signal(SIGTERM, SIG_IGN);
  const std::lock_guard lock(mutex_);
  if (std::exchange(part_written_, true)) return;
  const std::string path = trace_part_path(path_, world_.rank());
  const Status status = write(path, {sink_.snapshot()});
  if (!status.ok()) {
    std::cerr << "stormo train: " << status.message() << "\n";
  } else if (world_.rank() == 0) {
    std::cerr << "trace up to the failure: " << path
              << (world_.size() > 1 ? ", and one file beside it for each other rank\n" : "\n");
  }
}

Status TraceFile::begin() {
  STORMO_ASSIGN_OR_RETURN(const auto reading, read_clock_of_rank_0(world_, RealClock()));
  sink_.begin_at(reading);
  return {};
}

Status TraceFile::finish() {
  STORMO_ASSIGN_OR_RETURN(const auto reading, read_clock_of_rank_0(world_, RealClock()));
  sink_.end_at(reading);
  STORMO_ASSIGN_OR_RETURN(const auto traces, gather_traces(world_, sink_.snapshot()));
  stop_watching();
  finished_ = true;
  if (world_.rank() != 0) return ok_status();
  STORMO_RETURN_IF_ERROR(write(path_, traces));
  std::cerr << "trace: " << path_ << " (open it at ui.perfetto.dev)\n";
  return ok_status();
}

}  // namespace stormo::cli
