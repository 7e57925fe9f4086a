#include <stormo/observe/event_log.h>

#include <fmt/format.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string_view>

#include <stormo/base/event.h>

namespace stormo::observe {
namespace {

// A file is a list of records (TFRecord): length, its checksum, bytes, their checksum. The bytes
// are an Event in protobuf's form. Numbers of fields are those of tensorflow/core/util/event.proto
// and framework/summary.proto.

static_assert(std::endian::native == std::endian::little);

constexpr std::array<std::uint32_t, 256> make_table() {
  constexpr std::uint32_t kCastagnoli = 0x82f63b78;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) {
      table[i] = (table[i] >> 1) ^ ((table[i] & 1) != 0 ? kCastagnoli : 0);
    }
  }
  return table;
}

/// CRC-32C, rotated and shifted as TFRecord wants it: bytes that contain checksums are summed up
/// too.
std::uint32_t masked_checksum(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = make_table();
  std::uint32_t sum = ~0u;
  for (const char c : bytes)
    sum = (sum >> 8) ^ kTable[(sum ^ static_cast<unsigned char>(c)) & 0xff];
  return std::rotr(~sum, 15) + 0xa282ead8u;
}

template <class Number>
std::string bytes_of(Number number) {
  std::string out(sizeof number, '\0');
  std::memcpy(out.data(), &number, sizeof number);
  return out;
}

std::string record_of(const std::string& bytes) {
  const std::string length = bytes_of<std::uint64_t>(bytes.size());
  return length + bytes_of(masked_checksum(length)) + bytes + bytes_of(masked_checksum(bytes));
}

enum Wire : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(std::uint64_t number) {
  std::string out;
  for (; number >= 0x80; number >>= 7) out += static_cast<char>(number | 0x80);
  return out + static_cast<char>(number);
}

std::string key(int field, Wire wire) { return varint(static_cast<unsigned>(field) << 3 | wire); }
std::string integer(int field, std::int64_t value) {
  return key(field, kVarint) + varint(static_cast<std::uint64_t>(value));
}
std::string text(int field, std::string_view value) {
  return key(field, kBytes) + varint(value.size()) + std::string(value);
}

/// A value of a Summary.
std::string scalar(std::string_view tag, double value) {
  return text(1, text(1, tag) + key(2, kFixed32) + bytes_of(static_cast<float>(value)));
}

constexpr int kFileVersion = 3, kSummary = 5, kSessionLog = 7;  // of Event
constexpr int kSessionStart = 1;                                // of SessionLog.SessionStatus

}  // namespace

EventLog::EventLog(std::ostream& out, std::int64_t tokens_per_sample)
    : out_(out), tokens_per_sample_(tokens_per_sample) {
  write_event(0, text(kFileVersion, "brain.Event:2"));
}

std::string EventLog::file_name(std::int64_t unix_seconds, const std::string& host, int pid) {
  return fmt::format("events.out.tfevents.{}.{}.{}", unix_seconds, host, pid);
}

void EventLog::write_event(std::int64_t step, const std::string& content) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::string head =
      key(1, kFixed64) + bytes_of(now) + (step == 0 ? "" : integer(2, step));  // 0 is left out
  out_ << record_of(head + content) << std::flush;
}

// Steps after the one from which a run goes on are shown once: TensorBoard drops the older ones.
void EventLog::on_start(const StartRecord& r) {
  ranks_ = r.ranks;
  global_batch_ = r.global_batch;
  if (r.first_step > 0) {
    write_event(r.first_step + 1, text(kSessionLog, integer(1, kSessionStart)));
  }
}

void EventLog::on_step(const StepRecord& r) {
  std::string values = scalar("loss_metrics/global_avg_loss", r.loss) +
                       scalar("lr", r.learning_rate) +
                       scalar("throughput(samples/s)", r.samples_per_s);
  if (r.gradient_norm) values += scalar("grad_norm", *r.gradient_norm);
  if (tokens_per_sample_ > 0) {
    const double tokens = r.samples_per_s * static_cast<double>(tokens_per_sample_);
    values += scalar("throughput(tps)", tokens / static_cast<double>(ranks_));
    values += scalar("n_tokens_seen", static_cast<double>(r.samples * tokens_per_sample_));
  }
  if (r.samples_per_s > 0) {
    const double step_s = static_cast<double>(global_batch_) / r.samples_per_s;
    const double loading = r.share[static_cast<std::size_t>(Lane::kData)];
    values += scalar("time_metrics/end_to_end(s)", step_s);
    values += scalar("time_metrics/data_loading(s)", loading * step_s);
    values += scalar("time_metrics/data_loading(%)", 100 * loading);
  }
  write_event(r.step, text(kSummary, values));
}

void EventLog::on_eval(const EvalRecord& r) {
  const std::string group = r.split + "_metrics/";
  std::string values = scalar(group + "loss", r.loss);
  if (r.accuracy) values += scalar(group + "accuracy", *r.accuracy);
  write_event(r.step, text(kSummary, values));
}

}  // namespace stormo::observe
