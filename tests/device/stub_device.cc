// The slot of libtorch that it takes is that of HPU: modules move there by to(), as to CUDA, which
// PrivateUse1 does not permit.
//
// Memory: each address of the device stands for one at the same offset of a second range, where
// the operations of the device see the values. Operations run on the CPU on copies of tensors
// (libtorch's fallback); only what makes, copies and views tensors is written here.
#include "tests/device/stub_device.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <stormo/base/check.h>

namespace stormo::test {
namespace {

constexpr auto kType = c10::DeviceType::HPU;
constexpr int kDevices = 8;
constexpr std::size_t kBytes = std::size_t{1} << 30;  // of addresses; memory comes when written

thread_local c10::DeviceIndex current = 0;
thread_local int running = 0;  // operations of the device, of this thread
std::atomic<std::int64_t> reads{0};
std::atomic<int> lost{-1};  // index of a device
std::atomic<bool> reads_fail{false};
std::array<std::atomic<std::int64_t>, kDevices> operations{};

/// While it lives, the thread is the device, and may read its memory.
struct Running {
  Running() { ++running; }
  ~Running() { --running; }
};

std::byte* reserve(int protection) {
  void* at =
      ::mmap(nullptr, kBytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  STORMO_CHECK(at != MAP_FAILED, "no addresses for the stub device");
  return static_cast<std::byte*>(at);
}

class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(kType, current);
    if (bytes == 0) return {nullptr, device};
    const std::size_t size = (bytes + 255) / 256 * 256;
    const std::scoped_lock lock(mutex_);
    std::vector<std::byte*>& free = free_[size];
    std::byte* block = device_ + used_;
    if (free.empty()) {
      used_ += size;
      STORMO_CHECK(used_ <= kBytes, "the stub device is full");
    } else {
      block = free.back();
      free.pop_back();
    }
    sizes_[block] = size;
    return {block, block, &Memory::give_back, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Memory::give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(seen(to), seen(from), bytes);
  }
  /// Where operations of the device see what lies at one of its addresses.
  void* seen(const void* address) const {
    return address == nullptr ? nullptr
                              : memory_ + (static_cast<const std::byte*>(address) - device_);
  }

 private:
  static void give_back(void* block);

  std::byte* const device_ = reserve(PROT_NONE);
  std::byte* const memory_ = reserve(PROT_READ | PROT_WRITE);
  std::mutex mutex_;
  std::size_t used_ = 0;
  std::map<std::byte*, std::size_t> sizes_;
  std::map<std::size_t, std::vector<std::byte*>> free_;
};

Memory& memory() {
  static auto* const it = new Memory;  // tensors may outlive all
  return *it;
}

void Memory::give_back(void* block) {
  Memory& all = memory();
  const std::scoped_lock lock(all.mutex_);
  auto* const at = static_cast<std::byte*>(block);
  all.free_[all.sizes_.at(at)].push_back(at);
}

/// One stream; what is enqueued is done at once.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device to) const override {
    const c10::Device before = getDevice();
    setDevice(to);
    return before;
  }
  c10::Device getDevice() const override { return {kType, current}; }
  void setDevice(c10::Device to) const override { uncheckedSetDevice(to); }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (to.has_index()) current = to.index();
  }
  c10::Stream getStream(c10::Device of) const override {
    return c10::Stream(c10::Stream::DEFAULT, of);
  }
  c10::Stream getDefaultStream(c10::Device of) const override { return getStream(of); }
  c10::Stream exchangeStream(c10::Stream to) const override { return to; }
  void* getStreamNativeHandle(const c10::Stream) const override { return nullptr; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}

  // An event is the number of operations before it.
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    if (*event == nullptr) *event = new std::int64_t;
    *static_cast<std::int64_t*>(*event) = stub_operations(stream.device_index());
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<std::int64_t*>(event);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    return static_cast<double>(
        (*static_cast<std::int64_t*>(to) - *static_cast<std::int64_t*>(from)) * kStubOperationMs);
  }
};

struct Hooks final : at::HPUHooksInterface {
  explicit Hooks(at::HPUHooksArgs) {}
  void init() const override {}
  bool hasHPU() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex to) const override { current = to; }
  /// For seeds; operations draw from the CPU's.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const auto* const generator =
        new at::Generator(at::make_generator<at::CPUGeneratorImpl>(0));
    return *generator;
  }
};

/// The tensor as operations of the device see it.
at::Tensor seen(const at::Tensor& t) {
  if (t.is_cpu()) return t;
  return at::from_blob(memory().seen(t.data_ptr()), t.sizes(), t.strides(),
                       t.options().device(at::kCPU).requires_grad(false));
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(at::Device(kType, current)));
  return at::detail::empty_generic(size, &memory(), c10::DispatchKeySet(c10::DispatchKey::HPU),
                                   c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(at::Device(kType, current)));
  return at::detail::empty_strided_generic(size, stride, &memory(),
                                           c10::DispatchKeySet(c10::DispatchKey::HPU),
                                           c10::dtype_or_default(type));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size,
                          std::optional<at::MemoryFormat>) {
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  c10::StorageImpl* const storage = self.storage().unsafeGetStorageImpl();
  const std::size_t bytes =
      (static_cast<std::size_t>(self.storage_offset()) + self.numel()) * self.element_size();
  if (bytes > storage->nbytes()) {
    const c10::DeviceGuard guard(self.device());
    c10::DataPtr larger = memory().allocate(bytes);
    if (storage->nbytes() > 0) memory().copy_data(larger.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(larger));
    storage->set_nbytes(bytes);
  }
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  if (running == 0 && to.is_cpu()) ++reads;
  const bool is_lost =
      to.is_cpu() ? reads_fail && self.device().index() == lost : to.device().index() == lost;
  if (is_lost) throw std::runtime_error("the device is lost");
  const at::Tensor target = seen(to);
  target.copy_(seen(self));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  if (to.sizes() != self.sizes()) to.resize_(self.sizes());
  return copy_from(self, to, false);
}

at::Scalar number(const at::Tensor& self) {
  if (running == 0) ++reads;
  return at::native::_local_scalar_dense_cpu(seen(self));
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ++operations[static_cast<std::size_t>(current)];
  const Running device;
  at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
}

TORCH_LIBRARY_IMPL(aten, HPU, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &number);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
}

TORCH_LIBRARY_IMPL(_, HPU, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

C10_REGISTER_GUARD_IMPL(HPU, Guard)

}  // namespace

torch::Device stub_device(int index) {
  static const bool once = [] {
    c10::SetAllocator(kType, &memory());
    return true;
  }();
  STORMO_CHECK(once && 0 <= index && index < kDevices, "no such stub device");
  return {kType, static_cast<c10::DeviceIndex>(index)};
}

LostStubDevice::LostStubDevice(int index, bool also_reads) {
  lost = index;
  reads_fail = also_reads;
}
LostStubDevice::~LostStubDevice() { lost = -1; }

std::int64_t stub_reads() { return reads; }
std::int64_t stub_operations(int index) { return operations[static_cast<std::size_t>(index)]; }

}  // namespace stormo::test

namespace at {
using HPUHooks = stormo::test::Hooks;
REGISTER_HPU_HOOKS(HPUHooks);
}  // namespace at
