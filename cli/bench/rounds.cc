#include <cli/bench/rounds.h>

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <sstream>

#include <stormo/base/file.h>

namespace stormo::cli {
namespace {

using bench::Measurement;

/// Cores that processes other than this one's children keep busy.
class OtherLoad {
 public:
  OtherLoad() : busy_(busy()), own_(own()), begun_(std::chrono::steady_clock::now()) {}
  double cores() const {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begun_;
    return std::max(0.0, (busy() - busy_ - (own() - own_)) / elapsed.count());
  }

 private:
  static double busy() {
    std::istringstream in(first_line("/proc/stat"));
    std::string name;
    in >> name;
    double ticks = 0;
    double value = 0;
    for (int field = 0; field < 8 && in >> value; ++field)
      if (field != 3 && field != 4) ticks += value;  // idle, waiting for a disk
    return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }
  static double own() {
    std::array<struct rusage, 2> both{};
    ::getrusage(RUSAGE_SELF, &both[0]);
    ::getrusage(RUSAGE_CHILDREN, &both[1]);
    double seconds = 0;
    for (const struct rusage& u : both)
      for (const timeval& t : {u.ru_utime, u.ru_stime})
        seconds += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    return seconds;
  }
  double busy_;
  double own_;
  std::chrono::steady_clock::time_point begun_;
};

double median_of(const std::vector<Measurement>& rounds, double Measurement::*field) {
  std::vector<double> values;
  for (const Measurement& m : rounds) values.push_back(m.*field);
  return bench::median(std::move(values));
}

/// The same size in all rounds, as one.
Measurement merged(const std::vector<Measurement>& rounds) {
  Measurement m = rounds.front();
  for (double Measurement::*field :
       {&Measurement::p50_s, &Measurement::p90_s, &Measurement::p99_s, &Measurement::algbw,
        &Measurement::busbw, &Measurement::cpu_s, &Measurement::switches})
    m.*field = median_of(rounds, field);
  std::vector<double> rooflines;
  m.iterations = 0;
  for (const Measurement& one : rounds) {
    if (one.roofline) rooflines.push_back(*one.roofline);
    m.verified = m.verified && one.verified;
    m.iterations += one.iterations;
  }
  if (!rooflines.empty()) m.roofline = bench::median(std::move(rooflines));
  return m;
}

}  // namespace

Status unexpected(const Contender& contender, const ChildOutcome& outcome) {
  const std::string said = tail_of(outcome.err.empty() ? outcome.out : outcome.err);
  return Status(Code::kIo, fmt::format("{} ended with {}: {}", contender.name, outcome.status,
                                       said.empty() ? "it said nothing" : said));
}

Status each_round(const std::vector<Contender>& contenders, int rounds,
                  const std::function<Status(std::size_t, Result<ChildOutcome>)>& take,
                  const std::function<void(const std::string&)>& note) {
  for (int round = 0; round < rounds; ++round) {
    const OtherLoad load;
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const std::size_t turn = round % 2 == 0 ? i : contenders.size() - 1 - i;
      const Contender& contender = contenders[turn];
      if (!contender.rendezvous.empty()) ::unlink(contender.rendezvous.c_str());
      STORMO_RETURN_IF_ERROR(take(turn, run_child(contender.command)));
    }
    note(
        fmt::format("round {}/{}: others kept {:.2f} cores busy", round + 1, rounds, load.cores()));
  }
  return {};
}

Result<RoundResults> run_rounds(const std::vector<Contender>& contenders,
                                const BenchOptions& options,
                                const std::function<void(const std::string&)>& note) {
  RoundResults results(contenders.size());
  // wrong results are results; fewer than asked for are a failure
  const auto take = [&](std::size_t index, Result<ChildOutcome> outcome) -> Status {
    STORMO_RETURN_IF_ERROR(outcome.status().within(contenders[index].name));
    auto found = bench::parse_measurements(outcome->out);
    if (!found.ok() || found->size() != options.bytes.size())
      return unexpected(contenders[index], *outcome);
    results[index].push_back(std::move(*found));
    return {};
  };
  STORMO_RETURN_IF_ERROR(each_round(contenders, options.rounds, take, note));
  return results;
}

std::vector<BenchRow> rows_of(const std::vector<Contender>& contenders, const RoundResults& results,
                              const std::string& rate) {
  std::vector<BenchRow> rows;
  const std::size_t sizes = results.front().front().size();
  const double line = payload_rate(rate);
  for (std::size_t size = 0; size < sizes; ++size) {
    std::vector<std::vector<Measurement>> of(contenders.size());
    std::vector<std::vector<double>> p50(contenders.size());
    for (std::size_t c = 0; c < contenders.size(); ++c) {
      for (const auto& round : results[c]) {
        of[c].push_back(round[size]);
        p50[c].push_back(round[size].p50_s);
      }
    }
    BenchRow row{.ours = merged(of[0]), .rounds = static_cast<int>(of[0].size())};
    if (line > 0) row.line = row.ours.busbw / line;
    for (std::size_t c = 1; c < contenders.size(); ++c)
      row.against.push_back({contenders[c].name, merged(of[c]), bench::ratios(p50[c], p50[0])});
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace stormo::cli
