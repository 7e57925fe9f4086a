#include <stormo/plan/topology.h>

#include <bit>
#include <numeric>
#include <utility>

#include <stormo/base/check.h>
#include <stormo/plan/hash.h>
#include <stormo/plan/limits.h>
#include <stormo/plan/text/text.h>

namespace stormo::plan {
namespace {

void append_link(std::string& out, std::string_view name, const Link& link) {
  out += name;
  out += " latency_s=";
  append_real(out, link.latency_s);
  out += " byte_s=";
  append_real(out, link.seconds_per_byte);
  out += '\n';
}

double read_real_field(TextReader& in, std::string_view key) {
  in.expect(key);
  in.expect("=");
  return in.real(key);
}

Link read_link(TextReader& in, std::string_view name) {
  if (in.at_end()) in.fail("expected '" + std::string(name) + "', found nothing");
  in.expect(name);
  Link link;
  link.latency_s = read_real_field(in, "latency_s");
  link.seconds_per_byte = read_real_field(in, "byte_s");
  in.expect_line_end();
  return link;
}

std::vector<int> read_hosts(TextReader& in) {
  if (in.at_end()) in.fail("expected 'hosts', found nothing");
  in.expect("hosts");
  std::vector<int> sizes;
  std::int64_t ranks = 0;
  do {
    sizes.push_back(in.small_integer("the number of ranks on a host", 1, kMaxRanks));
    ranks += sizes.back();
    if (ranks > kMaxRanks) in.fail_at_token("more than " + std::to_string(kMaxRanks) + " ranks");
  } while (!in.at_line_end());
  return sizes;
}

}  // namespace

Topology Topology::gigabit(std::vector<int> host_sizes) {
  return {.host_sizes = std::move(host_sizes),
          .intra = {5e-7, 1e-10},
          .inter = {2e-5, 8.4e-9},
          .reduce_seconds_per_byte = 1e-10};
}

Topology Topology::uniform(int hosts, int ranks_per_host, Link intra, Link inter,
                           double reduce_seconds_per_byte) {
  STORMO_CHECK(hosts >= 1 && ranks_per_host >= 1 && hosts <= kMaxRanks / ranks_per_host,
               "Topology: ranks out of range");
  return {std::vector<int>(static_cast<std::size_t>(hosts), ranks_per_host), intra, inter,
          reduce_seconds_per_byte};
}

int Topology::ranks() const { return std::accumulate(host_sizes.begin(), host_sizes.end(), 0); }

std::vector<int> Topology::host_of_ranks() const {
  std::vector<int> out;
  out.reserve(static_cast<std::size_t>(ranks()));
  for (int host = 0; host < hosts(); ++host) {
    out.insert(out.end(), static_cast<std::size_t>(host_sizes[static_cast<std::size_t>(host)]),
               host);
  }
  return out;
}

std::string to_text(const Topology& t) {
  std::string out = "topology v1\nhosts";
  for (const int size : t.host_sizes) {
    out += ' ';
    append_integer(out, size);
  }
  out += '\n';
  append_link(out, "intra", t.intra);
  append_link(out, "inter", t.inter);
  out += "reduce byte_s=";
  append_real(out, t.reduce_seconds_per_byte);
  out += '\n';
  return out;
}

Result<Topology> parse_topology(std::string_view text) {
  TextReader in(text);
  in.expect_header("topology");
  in.expect_line_end();
  Topology t;
  t.host_sizes = read_hosts(in);
  t.intra = read_link(in, "intra");
  t.inter = read_link(in, "inter");
  if (in.at_end()) in.fail("expected 'reduce', found nothing");
  in.expect("reduce");
  t.reduce_seconds_per_byte = read_real_field(in, "byte_s");
  if (!in.at_end()) in.fail("unexpected text after the topology");
  if (!in.ok()) return in.status();
  return t;
}

std::uint64_t hash(const Topology& t) {
  StableHash h;
  h.add("topology v1");
  h.add(std::uint64_t{t.host_sizes.size()});
  for (const int size : t.host_sizes) h.add(static_cast<std::uint64_t>(size));
  for (const double x : {t.intra.latency_s, t.intra.seconds_per_byte, t.inter.latency_s,
                         t.inter.seconds_per_byte, t.reduce_seconds_per_byte}) {
    h.add(std::bit_cast<std::uint64_t>(x + 0.0));  // -0.0 equals 0.0 and must hash alike
  }
  return h.value();
}

}  // namespace stormo::plan
