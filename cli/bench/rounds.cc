#include <cli/bench/rounds.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <stormo/launch/process/other_load.h>

namespace stormo::cli {
namespace {

using bench::Measurement;

/// The same size in all rounds, as one.
Measurement merged(const std::vector<Measurement>& rounds) {
  Measurement m = rounds.front();
  for (double Measurement::*field :
       {&Measurement::p50_s, &Measurement::p90_s, &Measurement::p99_s, &Measurement::algbw,
        &Measurement::busbw, &Measurement::cpu_s, &Measurement::switches})
    m.*field = bench::median(bench::each(rounds, field));
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
                  const std::function<Status(std::size_t, const ChildOutcome&)>& take) {
  for (const Contender& c : contenders)
    fmt::print(stderr, "$ {}\n", fmt::join(c.command.words, " "));
  for (int round = 0; round < rounds; ++round) {
    const launch::OtherLoad load;
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const std::size_t turn = round % 2 == 0 ? i : contenders.size() - 1 - i;
      const Contender& contender = contenders[turn];
      if (!contender.rendezvous.empty()) ::unlink(contender.rendezvous.c_str());
      const auto outcome = run_child(contender.command);
      STORMO_RETURN_IF_ERROR(outcome.status().within(contender.name));
      STORMO_RETURN_IF_ERROR(take(turn, *outcome));
    }
    fmt::print(stderr, "round {}/{}: others kept {:.2f} cores busy\n", round + 1, rounds,
               load.cores());
  }
  return {};
}

std::vector<BenchRow> rows_of(const std::vector<Contender>& contenders,
                              const RoundResults<Measurement>& results, const std::string& rate) {
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
