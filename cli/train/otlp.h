#pragma once

#include <memory>

#include <cli/train/rank.h>
#include <cli/train/reports.h>
#include <stormo/base/status.h>
#include <stormo/observe/otlp/otlp_exporter.h>

namespace stormo::cli {

/// What is wrong with --otlp and the variables that belong to it (docs/environment.md).
Status check_otlp(const TrainArguments& words);

/// --otlp: the exporter of a rank that reports, null without it. It tells the reports, which must
/// outlive it, what it could not send.
std::unique_ptr<observe::OtlpExporter> open_otlp(const TrainRun& run, Outlets& outlets);

/// Sends the rest, for a short time, and says what was lost.
void close_otlp(Outlets& outlets);

}  // namespace stormo::cli
