#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <stormo/comm/communicator.h>

/// Every operation of a Communicator by name, each with a known outcome that is checked: what tests
/// of faults go through.
namespace stormo::comm {

using Elements = std::vector<std::int64_t>;

/// What rank `rank` contributes as element `i`.
inline std::int64_t term(int rank, std::int64_t i) { return (rank + 1) * 1000 + i % 97; }

inline Elements terms(int rank, std::int64_t count, std::int64_t from = 0) {
  Elements v(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) v[static_cast<std::size_t>(i)] = term(rank, from + i);
  return v;
}

/// Elements from..from+count of the sum of ranks 0..ranks-1.
inline Elements sum_of_terms(int ranks, std::int64_t count, std::int64_t from = 0) {
  Elements v(static_cast<std::size_t>(count));
  for (int r = 0; r < ranks; ++r) {
    for (std::int64_t i = 0; i < count; ++i) v[static_cast<std::size_t>(i)] += term(r, from + i);
  }
  return v;
}

inline Elements all_terms(int ranks, std::int64_t count) {
  Elements v;
  for (int r = 0; r < ranks; ++r) {
    const Elements part = terms(r, count);
    v.insert(v.end(), part.begin(), part.end());
  }
  return v;
}

struct NamedOperation {
  std::string_view name;
  /// Runs it with `count` elements per rank; kCorrupt when it ends well with a wrong outcome.
  Status (*run)(Communicator& c, std::int64_t count, Deadline by);
};

namespace every_operation_detail {

inline Buffer buffer(Elements& v) { return v; }

inline Status checked(const Status& outcome, const Elements& got, const Elements& want) {
  STORMO_RETURN_IF_ERROR(outcome);
  return got == want ? Status() : Status(Code::kCorrupt, "wrong data were given as the outcome");
}

inline Status all_reduce(Communicator& c, std::int64_t n, Deadline by) {
  Elements x = terms(c.rank(), n);
  return checked(c.all_reduce(buffer(x), ReduceOp::kSum, by), x, sum_of_terms(c.size(), n));
}
inline Status reduce(Communicator& c, std::int64_t n, Deadline by) {
  const Rank root = c.size() - 1;
  Elements x = terms(c.rank(), n);
  const Status outcome = c.reduce(buffer(x), ReduceOp::kSum, root, by);
  return c.rank() == root ? checked(outcome, x, sum_of_terms(c.size(), n)) : outcome;
}
inline Status broadcast(Communicator& c, std::int64_t n, Deadline by) {
  Elements x = terms(c.rank(), n);
  return checked(c.broadcast(buffer(x), 0, by), x, terms(0, n));
}
inline Status scan(Communicator& c, std::int64_t n, Deadline by) {
  Elements x = terms(c.rank(), n);
  return checked(c.scan(buffer(x), ReduceOp::kSum, by), x, sum_of_terms(c.rank() + 1, n));
}
inline Status exclusive_scan(Communicator& c, std::int64_t n, Deadline by) {
  Elements x = terms(c.rank(), n);
  return checked(c.exclusive_scan(buffer(x), ReduceOp::kSum, by), x,
                 c.rank() == 0 ? terms(0, n) : sum_of_terms(c.rank(), n));
}
inline Status all_gather(Communicator& c, std::int64_t n, Deadline by) {
  Elements in = terms(c.rank(), n);
  Elements out(in.size() * static_cast<std::size_t>(c.size()));
  return checked(c.all_gather(buffer(in), buffer(out), by), out, all_terms(c.size(), n));
}
inline Status gather(Communicator& c, std::int64_t n, Deadline by) {
  Elements in = terms(c.rank(), n);
  Elements out(c.rank() == 0 ? in.size() * static_cast<std::size_t>(c.size()) : 0);
  return checked(c.gather(buffer(in), buffer(out), 0, {}, by), out,
                 c.rank() == 0 ? all_terms(c.size(), n) : Elements());
}
inline Status scatter(Communicator& c, std::int64_t n, Deadline by) {
  Elements in = c.rank() == 0 ? all_terms(c.size(), n) : Elements();
  Elements out(static_cast<std::size_t>(n));
  return checked(c.scatter(buffer(in), buffer(out), 0, {}, by), out, terms(c.rank(), n));
}
inline Status reduce_scatter(Communicator& c, std::int64_t n, Deadline by) {
  Elements in = terms(c.rank(), n * c.size());
  Elements out(static_cast<std::size_t>(n));
  return checked(c.reduce_scatter(buffer(in), buffer(out), ReduceOp::kSum, by), out,
                 sum_of_terms(c.size(), n, n * c.rank()));
}
inline Status all_to_all(Communicator& c, std::int64_t n, Deadline by) {
  Elements in, want;
  for (int r = 0; r < c.size(); ++r) {
    const Elements sent = terms(c.rank() * 100 + r, n);
    const Elements received = terms(r * 100 + c.rank(), n);
    in.insert(in.end(), sent.begin(), sent.end());
    want.insert(want.end(), received.begin(), received.end());
  }
  Elements out(in.size());
  return checked(c.all_to_all(buffer(in), buffer(out), by), out, want);
}
inline Status barrier(Communicator& c, std::int64_t, Deadline by) { return c.barrier(by); }

/// A message from every rank to the next; rank 0 receives first.
inline Status send_and_recv(Communicator& c, std::int64_t n, Deadline by) {
  const Rank next = (c.rank() + 1) % c.size();
  const Rank previous = (c.rank() + c.size() - 1) % c.size();
  Elements out = terms(c.rank(), n);
  Elements in(out.size());
  if (c.rank() != 0) STORMO_RETURN_IF_ERROR(c.send(buffer(out), next, 7, by));
  STORMO_RETURN_IF_ERROR(checked(c.recv(buffer(in), previous, 7, by), in, terms(previous, n)));
  return c.rank() == 0 ? c.send(buffer(out), next, 7, by) : Status();
}

}  // namespace every_operation_detail

inline const std::vector<NamedOperation>& every_operation() {
  namespace d = every_operation_detail;
  static const std::vector<NamedOperation> operations = {
      {"all_reduce", d::all_reduce},
      {"reduce", d::reduce},
      {"broadcast", d::broadcast},
      {"scan", d::scan},
      {"exclusive_scan", d::exclusive_scan},
      {"all_gather", d::all_gather},
      {"gather", d::gather},
      {"scatter", d::scatter},
      {"reduce_scatter", d::reduce_scatter},
      {"all_to_all", d::all_to_all},
      {"barrier", d::barrier},
      {"send_and_recv", d::send_and_recv},
  };
  return operations;
}

}  // namespace stormo::comm
