#include <cli/train/reports.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <utility>

#include <cli/build_facts.h>
#include <cli/place.h>
#include <cli/top/job_file.h>
#include <cli/train/otlp.h>
#include <cli/train/report.h>
#include <stormo/base/printable.h>
#include <stormo/base/version.h>
#include <stormo/launch/environment.h>
#include <stormo/launch/network.h>
#include <stormo/launch/process/sibling_ranks.h>
#include <stormo/launch/secret_file.h>
#include <stormo/observe/csv_log.h>
#include <stormo/observe/event_log.h>
#include <stormo/transport/net/socket.h>

namespace stormo::cli {
namespace {

observe::TerminalStyle style() {
  const int columns = terminal_columns();
  return observe::terminal_style(columns > 0, columns, std::getenv("NO_COLOR"),
                                 std::getenv("TERM"));
}

Status open_table(const TrainRun& run, bool goes_on, Reports& reports) {
  const std::string& path = run.words.log_csv;
  if (path.empty()) return {};
  const int how = goes_on || run.parsed.recipe.train.resume ? O_APPEND : O_TRUNC;
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0666));
  if (!file.valid()) return errno_error("--log-csv: open " + path);
  struct stat info {};
  const bool heads = ::fstat(file.get(), &info) != 0 || info.st_size == 0;
  reports.add_table(std::move(file), heads);
  return {};
}

Status open_events(const TrainRun& run, Reports& reports) {
  const std::string& folder = run.words.tensorboard;
  if (folder.empty()) return {};
  std::error_code failed;  // the file tells of it
  std::filesystem::create_directories(folder, failed);
  std::array<char, HOST_NAME_MAX + 1> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  const std::string path =
      folder + "/" + observe::EventLog::file_name(std::time(nullptr), host.data(), ::getpid());
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.valid()) return errno_error("--tensorboard: open " + path);
  const train::Recipe& recipe = run.parsed.recipe;
  reports.add_events(std::move(file), recipe.data.kind == "text" ? recipe.model.context : 0);
  return {};
}

/// "none" where this process is not one of a launcher's.
std::string source_of(const TrainRun& run) {
  const auto read = [](std::string_view name) -> std::optional<std::string> {
    if (name == "STORMO_SECRET_FD") return std::nullopt;  // it can be read once
    return launch::process_environment()(name);
  };
  const auto place = read_place(run.words.launch, read);
  return place.ok() ? place->source : "none";
}

observe::Monitor::RankProcesses look_at_ranks(const TrainRun& run) {
  const std::string host =
      launch::process_environment()("STORMO_HOST").value_or(launch::own_host_name());
  return [source = source_of(run), host] {
    std::vector<observe::RankProcess> ranks;
    for (const launch::SiblingRank& r : launch::sibling_ranks(source)) {
      const bool stopped = r.letter == 'T' || r.letter == 't';
      ranks.push_back({.rank = r.rank,
                       .host = host,
                       .state = stopped ? "stopped" : "running",
                       .memory_bytes = r.memory_bytes});
    }
    return ranks;
  };
}

/// Without it `stormo top` still shows the job to who gives its address.
void leave_job_file(const TrainRun& run, Outlets& outlets) {
  const std::string& token = run.words.metrics_token;
  std::error_code failed;
  outlets.job_file.reset();  // the new one has the same name
  Result<JobFile> file = JobFile::write(
      {.address = outlets.monitor->address(),
       .recipe = run.parsed.recipe.train.name,
       .token_file = token.empty() ? "" : std::filesystem::absolute(token, failed).string()},
      launch::process_environment());
  if (file.ok()) {
    outlets.job_file.emplace(*std::move(file));
  } else {
    std::cerr << "warning: `stormo top` finds this job only by its address: "
              << message_text(file.status().message()) << "\n";
  }
}

}  // namespace

Reports::Reports(bool json)
    : errors_(STDERR_FILENO),
      output_(STDOUT_FILENO,
              [this](std::string_view reason) {
                errors_.append("stormo train: standard output: " + std::string(reason) +
                               "; records are being lost. Training goes on and will end with "
                               "exit code 1 at best\n");
              }),
      text_(errors_, style()),
      warnings_(errors_),
      json_(output_),
      has_json_(json) {
  // A program reads standard output; a person may still be watching.
  text_in_all_ = !json || terminal_columns() > 0;
  if (json) all_.push_back(&json_);
  if (text_in_all_) {
    all_.push_back(&text_);
  } else {
    all_.push_back(&warnings_);
  }
}

Reports::Log& Reports::add_log(Descriptor file, const std::string& flag, const std::string& what) {
  return logs_.emplace_back(std::move(file), [this, flag, what](std::string_view reason) {
    errors_.append("stormo train: " + flag + ": " + std::string(reason) + "; " + what +
                   " are being lost. Training goes on and will end with exit code 1 at best\n");
  });
}

void Reports::add_table(Descriptor file, bool heads) {
  Log& log = add_log(std::move(file), "--log-csv", "rows");
  log.writer = std::make_unique<observe::CsvLog>(log.stream, heads);
  add(*log.writer);
}

void Reports::add_events(Descriptor file, std::int64_t tokens_per_sample) {
  Log& log = add_log(std::move(file), "--tensorboard", "events");
  log.writer = std::make_unique<observe::EventLog>(log.stream, tokens_per_sample);
  add(*log.writer);
}

// JSON ends with the event "end", and the text with what belongs to it.
void Reports::add_cost(observe::CostMeter& meter) {
  if (has_json_) all_.insert(all_.begin(), &costs_.emplace_back(meter, output_, /*as_json=*/true));
  all_.insert(all_.begin(), &meter);
  if (text_in_all_) all_.push_back(&costs_.emplace_back(meter, errors_, /*as_json=*/false));
}

observe::RunObserver& Reports::observer() {
  if (!tee_) tee_.emplace(all_);
  return *tee_;
}

void Reports::note(const std::string& line, const std::string& json) {
  errors_.append(line + "\n");
  if (has_json_) output_.append(json + "\n");
}

void Reports::fail(const observe::ErrorRecord& record) {
  if (!text_in_all_) text_.on_error(record);
  observer().on_error(record);
}

bool Reports::finish(Deadline by) {
  bool all_written = output_.finish(by);
  for (Log& log : logs_) all_written = log.stream.finish(by) && all_written;
  return errors_.finish(by) && all_written;
}

Status open_monitor(const TrainRun& run, Outlets& outlets) {
  const TrainArguments& words = run.words;
  if (!outlets.cost.meter) outlets.cost = open_cost(run);
  if (words.metrics.empty()) return {};
  STORMO_ASSIGN_OR_RETURN(transport::HostPort address, transport::parse_host_port(words.metrics));
  std::string token;
  if (!words.metrics_token.empty()) {
    const Result<transport::Secret> secret = launch::read_secret_file(words.metrics_token);
    if (!secret.ok()) return secret.status().within("--metrics-token");
    token = secret->to_hex();
  }
  const bool no_token = token.empty();
  Result<std::unique_ptr<observe::Monitor>> monitor = observe::Monitor::start(
      {.address = std::move(address), .token = std::move(token)},
      {.version = kVersion, .git = kGitHash}, look_at_ranks(run), outlets.cost.meter.get());
  if (!monitor.ok()) {
    const bool needs_token = no_token && monitor.status().code() == Code::kInvalidArgument;
    return Status(monitor.status().code(),
                  "--metrics: " + monitor.status().message() +
                      (needs_token ? "; name a file with one by --metrics-token, made by: " +
                                         std::string(launch::kMakeSecret)
                                   : ""));
  }
  outlets.monitor = std::move(*monitor);
  leave_job_file(run, outlets);
  std::cerr << "metrics: " << outlets.monitor->url() << "\n";
  return {};
}

Status open_reports(const TrainRun& run, bool goes_on, Outlets& outlets) {
  outlets.otlp.reset();  // it tells the earlier ones
  Reports& reports = outlets.reports.emplace(run.words.json);
  if (outlets.monitor) reports.add(outlets.monitor->observer());
  if (outlets.cost.meter) reports.add_cost(*outlets.cost.meter);
  outlets.otlp = open_otlp(run, outlets);
  if (outlets.otlp) reports.add(*outlets.otlp);
  STORMO_RETURN_IF_ERROR(open_table(run, goes_on, reports));
  return open_events(run, reports);
}

}  // namespace stormo::cli
