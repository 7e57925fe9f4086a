// The Python module _c10d: makes backends for torch.distributed.
#include <chrono>
#include <memory>
#include <utility>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <stormo/base/version.h>
#include <stormo/c10d/backend.h>
#include <stormo/c10d/flight_records.h>
#include <stormo/c10d/groups.h>
#include <stormo/c10d/leave_all.h>
#include <stormo/c10d/options.h>
#include <stormo/c10d/work.h>
#include <stormo/transport/store/store_keeper.h>

#include "python/averaging.h"
#include "python/backend_holder.h"
#include "python/interrupts.h"

namespace {

using stormo::c10d::StormoBackend;
using stormo::c10d::StormoOptions;
using Backend = IntrusivePtrNoGilDestructor<StormoBackend>;

/// At the end of a program that has not destroyed its groups: to the other ranks this is an end in
/// order. `by_exit`: the process ends by _exit(), so what waits for others has to wait here.
void end_process(bool by_exit) {
  stormo::c10d::leave_all();
  if (!by_exit) return;
  stormo::transport::StoreKeeper::of_process().wait_at_end([] { stormo::python::check_signals(); });
}

Backend create_backend(const ::c10d::DistributedBackendOptions& group,
                       const c10::intrusive_ptr<StormoOptions>& chosen) {
  using std::chrono::milliseconds;
  auto options =
      c10::make_intrusive<StormoOptions>(std::chrono::duration_cast<milliseconds>(group.timeout));
  options->group_name = group.group_id;
  options->global_ranks_in_group.assign(group.global_ranks_in_group.begin(),
                                        group.global_ranks_in_group.end());
  if (chosen) options->trust_store = chosen->trust_store;
  return c10::make_intrusive<StormoBackend>(
      stormo::c10d::GroupRanks::join({.store = group.store,
                                      .rank = group.group_rank,
                                      .size = group.group_size,
                                      .timeout = options->timeout,
                                      .name = group.group_id,
                                      .global_ranks = group.global_ranks_in_group,
                                      .trust_store = options->trust_store}),
      std::move(options));
}

}  // namespace

PYBIND11_MODULE(_c10d, m) {
  py::module_::import("torch.distributed");  // its types are the bases of those here
  m.attr("__version__") = std::string(stormo::kVersion);
  py::class_<StormoOptions, c10::intrusive_ptr<StormoOptions>, ::c10d::Backend::Options>(
      m, "StormoOptions", "What a default group may be told: init_process_group(pg_options=...).")
      .def(py::init([](bool trust_store) {
             auto options = c10::make_intrusive<StormoOptions>();
             options->trust_store = trust_store;
             return options;
           }),
           py::kw_only(), py::arg("trust_store") = false)
      .def_readwrite("trust_store", &StormoOptions::trust_store);
  py::class_<StormoBackend, Backend, ::c10d::Backend>(m, "StormoBackend");
  stormo::python::bind_averaging(m);
  m.def("create_backend", &create_backend, py::arg("group"), py::arg("options") = py::none(),
        py::call_guard<py::gil_scoped_release>());
  m.def("flight_records", [] {
    std::string records;
    {
      const py::gil_scoped_release release;
      records = stormo::c10d::FlightRecords::dump();
    }
    return py::bytes(records);
  });
  m.def("set_profiled_name", &stormo::c10d::set_profiled_name, py::arg("name"));  // for testing.py
  const auto threading = py::module_::import("threading");
  if (threading.attr("current_thread")().is(threading.attr("main_thread")())) {
    stormo::python::end_operations_by_interrupts();
  }
  // a child of multiprocessing ends by _exit() and runs nothing else
  const auto multiprocessing = py::module_::import("multiprocessing.util");
  const bool is_child =
      !py::module_::import("multiprocessing.process").attr("parent_process")().is_none();
  multiprocessing.attr("Finalize")(py::none(),
                                   py::cpp_function([is_child] { end_process(is_child); },
                                                    py::call_guard<py::gil_scoped_release>()),
                                   py::arg("exitpriority") = 0);
}
