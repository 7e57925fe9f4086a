#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::bench {

/// One operation of one size, as one system ran it. Times are of an iteration.
struct Measurement {
  std::string operation;
  int ranks = 0;
  int hosts = 1;
  std::uint64_t bytes = 0;  ///< as asked for
  std::string dtype;
  std::string buffers;    ///< empty: the system knows no difference
  std::string algorithm;  ///< empty: unknown
  std::string transport;  ///< likewise
  double p50_s = 0;
  double p90_s = 0;
  double p99_s = 0;
  double algbw = 0;     ///< bytes / p50_s, of the whole rounded up to equal parts
  double busbw = 0;     ///< algbw * bus_factor
  double cpu_s = 0;     ///< processor seconds of all ranks per iteration, rewriting included
  double switches = 0;  ///< context switches, likewise
  std::optional<double> roofline;  ///< the probe's time / p50_s
  bool verified = false;
  int iterations = 0;
};

/// One line of JSON, without its end.
std::string to_json(const Measurement& m);
/// Every line of `text` that is a measurement; a line that is none is an error.
Result<std::vector<Measurement>> parse_measurements(std::string_view text);

}  // namespace stormo::bench
