#include <cli/top/target.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <stormo/base/printable.h>
#include <stormo/base/text.h>
#include <stormo/base/version.h>
#include <stormo/launch/secret_file.h>

namespace stormo::cli {
namespace {

constexpr Duration kPatienceWithEach = std::chrono::seconds(1);  // of a list
constexpr int kHttpOk = 200, kHttpUnauthorized = 401, kHttpForbidden = 403;

Result<Target> with_token(transport::HostPort address, const std::string& file) {
  Target target{.address = std::move(address), .token_file = file};
  if (file.empty()) return target;
  const Result<transport::Secret> secret = launch::read_secret_file(file);
  if (!secret.ok()) return invalid_argument("--token: " + secret.status().message());
  target.token = secret->to_hex();
  return target;
}

/// "127.0.0.1:9464  mnist  training, step 12 of 100"
std::string job_line(const JobPlace& place) {
  std::string state = "does not answer";
  const Result<transport::HostPort> address = parse_job(place.address);
  if (address.ok()) {
    const Result<Target> target = with_token(*address, place.token_file);
    const Result<JobStatus> job = target.ok() ? ask(*target, Deadline::after(kPatienceWithEach))
                                              : Result<JobStatus>(target.status());
    if (job.ok()) state = state_text(*job);
  }
  return printable_line(fmt::format("{}  {}  {}", place.address, place.recipe, state));
}

Status several(const std::vector<JobPlace>& jobs) {
  std::string text = fmt::format(
      "{} jobs of this user run here; name one of them, such as "
      "`stormo top {}`",
      jobs.size(), jobs.front().address);
  for (const JobPlace& job : jobs) text += "\n  " + job_line(job);
  return invalid_argument(text);
}

Status not_stormo(const Target& target, const std::string& what) {
  return invalid_argument(fmt::format(
      "what answers at {} is no job of Stormo ({}); give the address that `stormo train --metrics` "
      "has printed",
      target.name(), what));
}

Status no_answer_of(const Target& target, const Status& why) {
  switch (why.code()) {
    case Code::kNotFound:
      return {Code::kNotFound,
              fmt::format("no job can be reached at {} ({}): it has ended, or was started without "
                          "--metrics, or elsewhere; `stormo top` without an address finds those of "
                          "this host",
                          target.name(), why.message())};
    case Code::kCorrupt: return not_stormo(target, why.message());
    case Code::kDeadlineExceeded:
      return {why.code(),
              fmt::format("the job at {} does not answer: its rank 0 is stopped, or its "
                          "host is very busy; try again",
                          target.name())};
    default:
      return {why.code(),
              fmt::format("the job at {}: {}; it may have ended", target.name(), why.message())};
  }
}

Status unauthorized(const Target& target) {
  if (target.token.empty()) {
    return invalid_argument(
        fmt::format("the job at {} shows itself only with its token: --token FILE, with the file "
                    "that `stormo train --metrics-token` was given",
                    target.name()));
  }
  return invalid_argument(
      fmt::format("the token in {} is not that of the job at {}: --token FILE, with the file that "
                  "`stormo train --metrics-token` was given",
                  target.token_file, target.name()));
}

}  // namespace

Result<transport::HostPort> parse_job(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  if (text.starts_with("https://")) {
    return invalid_argument(
        fmt::format("'{}': jobs of Stormo do not encrypt; write HOST:PORT", printable_line(text)));
  }
  if (text.starts_with(kScheme)) {
    text.remove_prefix(kScheme.size());
    text = text.substr(0, text.find('/'));
  }
  STORMO_ASSIGN_OR_RETURN(transport::HostPort address, transport::parse_host_port(text));
  if (address.port == 0) {
    return invalid_argument(
        fmt::format("'{}' has no port; write HOST:PORT, as `stormo train --metrics` has printed it",
                    printable_line(text)));
  }
  return address;
}

Result<Target> choose_job(const std::string& job, const std::string& token_file,
                          const std::vector<JobPlace>& jobs) {
  if (job.empty() && jobs.size() > 1) return several(jobs);
  if (job.empty() && jobs.empty()) {
    return Status(Code::kNotFound,
                  "no job of this user on this host can be looked at; start one with `stormo train "
                  "... --metrics 127.0.0.1:0`, or name the HOST:PORT of one that runs elsewhere");
  }
  STORMO_ASSIGN_OR_RETURN(const transport::HostPort address,
                          parse_job(job.empty() ? jobs.front().address : job));
  const std::string name = transport::to_string(address);
  const auto known = std::ranges::find(jobs, name, &JobPlace::address);
  const bool has_file = token_file.empty() && known != jobs.end();
  return with_token(address, has_file ? known->token_file : token_file);
}

Result<JobStatus> status_in(const Target& target, const Result<observe::HttpResponse>& answer) {
  if (!answer.ok()) return no_answer_of(target, answer.status());
  if (answer->status == kHttpUnauthorized) return unauthorized(target);
  if (answer->status == kHttpForbidden) {
    return invalid_argument(
        fmt::format("{} answers only who asks for its host by a numeric address", target.name()));
  }
  if (answer->status != kHttpOk) {
    return not_stormo(target, fmt::format("HTTP status {}", answer->status));
  }
  Result<JobStatus> job = parse_job_status(answer->body);
  if (job.ok()) return job;
  if (job.status().code() == Code::kCorrupt) return not_stormo(target, job.status().message());
  return invalid_argument(fmt::format(
      "the job at {} is of another Stormo ({}; this is version {}): use the `stormo` that started "
      "it",
      target.name(), printable_line(job.status().message()), kVersion));
}

Result<JobStatus> ask(const Target& target, Deadline by) {
  return status_in(target, observe::http_get(target.page("/json"), by));
}

}  // namespace stormo::cli
