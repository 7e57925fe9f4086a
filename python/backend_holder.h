#pragma once

#include <utility>

#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

/// torch's own holder of backends, which its headers do not have: the destructor of a group may
/// wait for a thread that needs the interpreter.
template <class T>
class IntrusivePtrNoGilDestructor {
 public:
  IntrusivePtrNoGilDestructor() = default;
  IntrusivePtrNoGilDestructor(c10::intrusive_ptr<T> p) : p_(std::move(p)) {}  // NOLINT: as torch's
  explicit IntrusivePtrNoGilDestructor(T* p)
      : p_(c10::intrusive_ptr<T>::unsafe_steal_from_new(p)) {}
  IntrusivePtrNoGilDestructor(const IntrusivePtrNoGilDestructor&) = default;
  IntrusivePtrNoGilDestructor(IntrusivePtrNoGilDestructor&&) noexcept = default;
  IntrusivePtrNoGilDestructor& operator=(const IntrusivePtrNoGilDestructor&) = default;
  IntrusivePtrNoGilDestructor& operator=(IntrusivePtrNoGilDestructor&&) noexcept = default;
  ~IntrusivePtrNoGilDestructor() {
    if (!p_ || PyGILState_Check() == 0) return;
    const py::gil_scoped_release release;
    p_.reset();
  }
  T& operator*() const noexcept { return *p_; }
  T* operator->() const noexcept { return p_.get(); }
  T* get() const noexcept { return p_.get(); }
  void reset() noexcept { p_.reset(); }
  explicit operator bool() const noexcept { return static_cast<bool>(p_); }

 private:
  c10::intrusive_ptr<T> p_;
};
PYBIND11_DECLARE_HOLDER_TYPE(T, IntrusivePtrNoGilDestructor<T>, true)
