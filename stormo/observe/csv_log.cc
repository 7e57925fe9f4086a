#include <stormo/observe/csv_log.h>

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <optional>
#include <string>

namespace stormo::observe {
namespace {

constexpr const char* kHead =
    "step,epoch,loss,learning_rate,samples_per_s,compute,communication,wait,data,slowest_rank,"
    "seconds,validation_loss,validation_accuracy,test_loss,test_accuracy\n";

/// What is no number is an empty field.
std::string field(std::optional<double> value) {
  return value && std::isfinite(*value) ? fmt::format("{}", *value) : "";
}

}  // namespace

CsvLog::CsvLog(std::ostream& out, bool heads)
    : out_(out), started_(std::chrono::steady_clock::now()) {
  if (heads) out_ << kHead << std::flush;
}

double CsvLog::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

void CsvLog::on_start(const StartRecord&) { started_ = std::chrono::steady_clock::now(); }

void CsvLog::on_step(const StepRecord& r) {
  std::string row = fmt::format("{},{},{},{},{}", r.step, field(r.epoch), field(r.loss),
                                field(r.learning_rate), field(r.samples_per_s));
  for (const double share : r.share) row += "," + field(share);
  row += "," + (r.slowest < 0 ? "" : std::to_string(r.slowest));
  out_ << row + fmt::format(",{:.3f},,,,\n", seconds()) << std::flush;
}

void CsvLog::on_eval(const EvalRecord& r) {
  const std::string values = field(r.loss) + "," + field(r.accuracy);
  out_ << fmt::format("{},,,,,,,,,,{:.3f},{},{}\n", r.step, seconds(),
                      r.split == "validation" ? values : ",", r.split == "test" ? values : ",")
       << std::flush;
}

}  // namespace stormo::observe
