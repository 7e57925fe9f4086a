#include <stormo/train/world/stage_link.h>

#include <algorithm>
#include <new>
#include <string>
#include <thread>

#include <stormo/tensor/bridge.h>

namespace stormo::train {
namespace {

/// The group of the stages may be the world: its users have the tags without the highest bit.
constexpr std::uint32_t header_tag(StageLink::Key key) {
  return std::uint32_t{1} << 31 | static_cast<std::uint32_t>(key) << 1;
}
constexpr std::uint32_t elements_tag(StageLink::Key key) { return header_tag(key) | 1; }
/// How long the end waits for peers that still have what they borrowed.
constexpr Duration kPatience = std::chrono::seconds(10);

Status check(StageLink::Key key) {
  if (key <= StageLink::kMaxKey) return {};
  return {Code::kBadPlan, "more tensors are under way between two stages than there are tags"};
}

template <class T>
comm::Buffer bytes_of_object(T& object) {
  return {&object, static_cast<std::int64_t>(sizeof(T)), DType::kUInt8};
}

}  // namespace

StageLink::StageLink(comm::Communicator& stages)
    : stages_(stages),
      shares_memory_(stages.peer_address(0, 0) != nullptr),
      peers_(static_cast<std::size_t>(stages.size())) {
  for (int host = 0; const int ranks : stages.ranks_per_host()) {
    host_of_.insert(host_of_.end(), static_cast<std::size_t>(ranks), host++);
  }
}

// A peer may still compute with what it has borrowed. If it has not dropped it in time, or the
// group has failed, the memory stays: nobody knows who reads it. So does that of messages which are
// still under way.
StageLink::~StageLink() {
  const Deadline by = Deadline::after(kPatience);
  for (free_dropped(); !lent_.empty() && stages_.status().ok() && !by.expired(); free_dropped()) {
    std::this_thread::yield();
  }
  for (const Lent& l : lent_) new torch::Tensor(l.tensor);  // NOLINT: never freed, on purpose
  for (Sending& s : sending_) static_cast<void>(s.work.wait(by));
  std::erase_if(sending_, [](const Sending& s) { return s.work.test(); });
  if (!sending_.empty()) new auto(std::move(sending_));  // NOLINT
  for (Peer& p : peers_) {
    std::erase_if(p.expected, [](const auto& e) { return e.second.work.test(); });
    if (!p.expected.empty()) new auto(std::move(p.expected));  // NOLINT
  }
}

bool StageLink::in_host(int stage) const {
  return shares_memory_ && host_of_[static_cast<std::size_t>(stage)] ==
                               host_of_[static_cast<std::size_t>(stages_.rank())];
}

Status StageLink::send(int to, Key key, const torch::Tensor& x, torch::IntArrayRef like) {
  STORMO_RETURN_IF_ERROR(check(key));
  free_dropped();
  STORMO_RETURN_IF_ERROR(forget_sent());
  Header header;
  if (x.defined()) {
    if (static_cast<std::size_t>(x.dim()) > kMaxDimensions) {
      return invalid_argument("a tensor between two stages has " + std::to_string(x.dim()) +
                              " dimensions, more than " + std::to_string(kMaxDimensions));
    }
    header.type = static_cast<std::int32_t>(x.scalar_type());
    header.dimensions = static_cast<std::int32_t>(x.dim());
    std::ranges::copy(x.sizes(), header.sizes.begin());
  }
  const torch::Tensor whole = x.defined() ? x.detach().contiguous() : x;
  return in_host(to) ? lend(to, key, header, whole) : send_far(to, key, header, whole, like);
}

/// By reference: the receiver says when it has dropped it.
Status StageLink::lend(int to, Key key, Header header, const torch::Tensor& x) {
  if (x.defined()) {
    STORMO_ASSIGN_OR_RETURN(const torch::Tensor shared, in_arena(x));
    void* const word = stages_.arena().allocate(sizeof(Word));
    if (word == nullptr) return Status(Code::kExhausted, "no room in the Arena of this rank");
    lent_.push_back({shared, new (word) Word(0)});
    header.elements_at = stages_.arena().offset_of(shared.data_ptr());
    header.dropped_at = stages_.arena().offset_of(word);
  }
  send_header(to, key, header);
  return {};
}

void StageLink::send_header(int to, Key key, const Header& header) {
  Sending& sending = sending_.emplace_back(Sending{.tensor = {}, .header = header, .work = {}});
  sending.work = stages_.send_async(bytes_of_object(sending.header), to, header_tag(key));
}

Result<torch::Tensor> StageLink::in_arena(const torch::Tensor& x) {
  transport::Arena& arena = stages_.arena();
  if (arena.contains(x.data_ptr())) {
    bytes_shared_ += x.nbytes();
    return x;
  }
  bytes_copied_ += x.nbytes();
  void* const memory = arena.allocate(std::max<std::size_t>(x.nbytes(), 1));
  if (memory == nullptr) return Status(Code::kExhausted, "no room in the Arena of this rank");
  torch::Tensor copy = torch::from_blob(
      memory, x.sizes(), [&arena](void* p) { arena.deallocate(p); }, x.options());
  copy.copy_(x);
  return copy;
}

Status StageLink::send_far(int to, Key key, const Header& header, const torch::Tensor& x,
                           torch::IntArrayRef like) {
  const auto [known, is_new] = peer(to).sent.try_emplace({key, like.vec()}, header);
  if (known->second != header) {
    return invalid_argument(
        "a tensor between two stages has another shape than in the step before, though the input "
        "has the same; a pipeline between hosts needs shapes that follow from that of the input");
  }
  if (is_new) send_header(to, key, header);
  if (!x.defined()) return {};
  sending_.push_back(
      {.tensor = x, .work = stages_.send_async(tensor::buffer_of(x), to, elements_tag(key))});
  return {};
}

Status StageLink::expect(int from, Key key, torch::IntArrayRef like) {
  STORMO_RETURN_IF_ERROR(check(key));
  const auto [entry, is_new] = peer(from).expected.try_emplace(key);
  if (!is_new) return {Code::kBadPlan, "two tensors of one key are under way between two stages"};
  if (in_host(from)) return {};
  Expected& expected = entry->second;
  expected.shape = {key, like.vec()};
  const auto known = peer(from).received.find(expected.shape);
  if (known == peer(from).received.end()) {
    expected.work = stages_.recv_async(bytes_of_object(expected.header), from, header_tag(key));
  } else {
    expected.header = known->second;
    post_elements(from, key, expected);
  }
  return {};
}

void StageLink::post_elements(int from, Key key, Expected& expected) {
  const Header& header = expected.header;
  if (header.type < 0) return;
  const torch::IntArrayRef sizes(header.sizes.data(), static_cast<std::size_t>(header.dimensions));
  expected.elements = torch::empty(sizes, static_cast<torch::ScalarType>(header.type));
  expected.work = stages_.recv_async(tensor::buffer_of(expected.elements), from, elements_tag(key));
}

Result<torch::Tensor> StageLink::receive(int from, Key key) {
  const auto entry = peer(from).expected.find(key);
  if (entry == peer(from).expected.end()) {
    return Status(Code::kBadPlan, "a stage needs a tensor that no move brings");
  }
  Result<torch::Tensor> x = torch::Tensor();
  if (in_host(from)) {
    Header header;
    STORMO_RETURN_IF_ERROR(stages_.recv(bytes_of_object(header), from, header_tag(key)));
    if (header.type >= 0) x = borrow(from, header);
  } else {
    x = receive_far(from, key, entry->second);
  }
  peer(from).expected.erase(entry);
  return x;
}

Result<torch::Tensor> StageLink::receive_far(int from, Key key, Expected& expected) {
  const auto [known, is_new] = peer(from).received.try_emplace(expected.shape);
  if (is_new) {
    STORMO_RETURN_IF_ERROR(expected.work.wait());
    known->second = expected.header;
    post_elements(from, key, expected);
  }
  if (expected.elements.defined()) STORMO_RETURN_IF_ERROR(expected.work.wait());
  return expected.elements;
}

torch::Tensor StageLink::borrow(int from, const Header& header) const {
  const auto first = std::ranges::find(host_of_, host_of_[static_cast<std::size_t>(from)]);
  const int local = from - static_cast<int>(first - host_of_.begin());
  auto* const dropped = reinterpret_cast<Word*>(stages_.peer_address(local, header.dropped_at));
  const torch::IntArrayRef sizes(header.sizes.data(), static_cast<std::size_t>(header.dimensions));
  return torch::from_blob(
      stages_.peer_address(local, header.elements_at), sizes,
      [dropped](void*) { dropped->store(1, std::memory_order_release); },
      torch::TensorOptions(static_cast<torch::ScalarType>(header.type)));
}

Status StageLink::drain() {
  for (int from = 0; from < num_stages(); ++from) {
    auto& expected = peer(from).expected;
    while (!expected.empty()) {
      STORMO_RETURN_IF_ERROR(receive(from, expected.begin()->first).status());
    }
  }
  return {};
}

void StageLink::free_dropped() {
  std::erase_if(lent_, [this](const Lent& l) {
    if (l.dropped->load(std::memory_order_acquire) == 0) return false;
    stages_.arena().deallocate(l.dropped);
    return true;
  });
}

Status StageLink::forget_sent() {
  Status outcome;
  std::erase_if(sending_, [&outcome](Sending& s) {
    if (!s.work.test()) return false;
    if (outcome.ok()) outcome = s.work.wait();
    return true;
  });
  return outcome;
}

}  // namespace stormo::train
