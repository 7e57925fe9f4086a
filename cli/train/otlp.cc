#include <cli/train/otlp.h>

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include <cli/build_facts.h>
#include <stormo/base/text.h>
#include <stormo/base/version.h>
#include <stormo/http/http_post.h>
#include <stormo/launch/environment.h>
#include <stormo/launch/network.h>

namespace stormo::cli {
namespace {

constexpr const char* kHeaders = "OTEL_EXPORTER_OTLP_HEADERS";
constexpr const char* kResource = "OTEL_RESOURCE_ATTRIBUTES";
constexpr const char* kInterval = "OTEL_METRIC_EXPORT_INTERVAL";
constexpr Duration kLastTime = std::chrono::seconds(2);

std::string variable(const char* name) { return launch::process_environment()(name).value_or(""); }

Result<observe::OtlpAttributes> attributes_of(const char* name) {
  auto attributes = observe::parse_otlp_attributes(variable(name));
  return attributes.ok() ? std::move(attributes) : attributes.status().within(name);
}

/// Empty: the default.
Result<std::optional<Duration>> interval_of_variable() {
  const std::string text = variable(kInterval);
  if (text.empty()) return std::optional<Duration>();
  const auto ms = number_in<int>(text);
  if (!ms || *ms < 1)
    return invalid_argument(
        fmt::format("{} is '{}': give milliseconds, such as 10000", kInterval, text));
  return std::optional<Duration>(std::chrono::milliseconds(*ms));
}

/// Who sends; what the user has said of it goes before.
observe::OtlpAttributes resource_of(const TrainRun& run) {
  observe::OtlpAttributes out = {
      {"service.name", "stormo"},
      {"service.version", kVersion},
      {"service.instance.id", fmt::format("{}:{}", launch::own_host_name(), ::getpid())},
      {"host.name", launch::own_host_name()},
      {"process.pid", std::to_string(::getpid())},
      {"stormo.recipe", run.parsed.recipe.train.name}};
  const auto given = attributes_of(kResource);
  for (const auto& [key, value] : given.ok() ? *given : observe::OtlpAttributes()) {
    std::erase_if(out, [&key](const auto& own) { return own.first == key; });
    out.emplace_back(key, value);
  }
  return out;
}

}  // namespace

Status check_otlp(const TrainArguments& words) {
  if (words.otlp.empty()) return {};
  if (!words.otlp.starts_with("http://") && !words.otlp.starts_with("https://"))
    return invalid_argument(fmt::format(
        "--otlp: '{}' is no address of a collector; write http://HOST:4318", words.otlp));
  if (!http::can_http_post())
    return invalid_argument(
        "--otlp: this Stormo was built without libcurl, by which it sends; install "
        "libcurl4-openssl-dev, and configure with -DSTORMO_CURL=ON");
  for (const char* name : {kHeaders, kResource}) {
    STORMO_RETURN_IF_ERROR(attributes_of(name).status());
  }
  return interval_of_variable().status();
}

std::unique_ptr<observe::OtlpExporter> open_otlp(const TrainRun& run, Outlets& outlets) {
  if (run.words.otlp.empty()) return nullptr;
  observe::OtlpExporter::Options options{.endpoint = run.words.otlp,
                                         .resource = resource_of(run),
                                         .build = {.version = kVersion, .git = kGitHash},
                                         .post = http::http_post,
                                         .cost = outlets.cost.meter.get()};
  while (options.endpoint.ends_with('/')) options.endpoint.pop_back();
  const auto headers = attributes_of(kHeaders);
  for (const auto& [name, value] : headers.ok() ? *headers : observe::OtlpAttributes())
    options.headers.push_back(name + ": " + value);
  const auto interval = interval_of_variable();
  if (interval.ok() && *interval) options.interval = **interval;
  options.on_failure = [&reports = *outlets.reports](std::string_view what) {
    reports.say("--otlp: " + std::string(what) + "; training goes on");
  };
  return std::make_unique<observe::OtlpExporter>(std::move(options));
}

void close_otlp(Outlets& outlets) {
  if (!outlets.otlp) return;
  const std::int64_t lost = outlets.otlp->finish(Deadline::after(kLastTime));
  if (lost > 0 && outlets.reports)
    outlets.reports->say(fmt::format("--otlp: {} events did not reach the collector", lost));
  outlets.otlp.reset();
}

}  // namespace stormo::cli
