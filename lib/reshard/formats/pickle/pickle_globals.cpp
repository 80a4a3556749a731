#include "reshard/formats/pickle/pickle_globals.h"

#include <algorithm>
#include <iterator>

namespace reshard {
namespace {

/// Globals that checkpoints call to create plain data. Includes all of torch's rebuild functions; the reader of tensors
/// decides which of them are supported.
constexpr PickleGlobal kKnown[] = {
    {"_codecs", "encode"},
    {"_io", "BytesIO"},
    {"_io", "StringIO"},
    {"builtins", "bool"},
    {"builtins", "bytearray"},
    {"builtins", "bytes"},
    {"builtins", "complex"},
    {"builtins", "dict"},
    {"builtins", "float"},
    {"builtins", "frozenset"},
    {"builtins", "int"},
    {"builtins", "list"},
    {"builtins", "object"},
    {"builtins", "range"},
    {"builtins", "set"},
    {"builtins", "slice"},
    {"builtins", "str"},
    {"builtins", "tuple"},
    {"collections", "Counter"},
    {"collections", "OrderedDict"},
    {"collections", "defaultdict"},
    {"collections", "deque"},
    {"copyreg", "_reconstructor"},
    {"datetime", "date"},
    {"datetime", "datetime"},
    {"datetime", "time"},
    {"datetime", "timedelta"},
    {"datetime", "timezone"},
    {"deepspeed.utils.tensor_fragment", "fragment_address"},
    {"inspect", "_empty"},
    {"neuronx_distributed.trainer.checkpoint", "_InternalTensorReference"},
    {"numpy", "dtype"},
    {"numpy", "ndarray"},
    {"numpy._core.multiarray", "_reconstruct"},
    {"numpy._core.multiarray", "scalar"},
    {"numpy.core.multiarray", "_reconstruct"},
    {"numpy.core.multiarray", "scalar"},
    {"numpy.random._pickle", "__bit_generator_ctor"},
    {"numpy.random._pickle", "__generator_ctor"},
    {"numpy.random._pickle", "__randomstate_ctor"},
    {"torch", "Size"},
    {"torch", "Tensor"},
    {"torch", "device"},
    {"torch._tensor", "_rebuild_from_type_v2"},
    {"torch._utils", "_rebuild_device_tensor_from_cpu_tensor"},
    {"torch._utils", "_rebuild_device_tensor_from_numpy"},
    {"torch._utils", "_rebuild_meta_tensor_no_storage"},
    {"torch._utils", "_rebuild_nested_tensor"},
    {"torch._utils", "_rebuild_parameter"},
    {"torch._utils", "_rebuild_parameter_with_state"},
    {"torch._utils", "_rebuild_qtensor"},
    {"torch._utils", "_rebuild_sparse_csr_tensor"},
    {"torch._utils", "_rebuild_sparse_tensor"},
    {"torch._utils", "_rebuild_tensor"},
    {"torch._utils", "_rebuild_tensor_v2"},
    {"torch._utils", "_rebuild_tensor_v3"},
    {"torch._utils", "_rebuild_wrapper_subclass"},
    {"torch._utils", "_rebuild_xla_tensor"},
    {"torch.distributed._mesh_layout", "_FlatLayout"},
    {"torch.distributed._mesh_layout", "_ListOfFlatLayouts"},
    {"torch.distributed._mesh_layout", "_MeshLayout"},
    {"torch.distributed._shard.checkpoint.filesystem", "_StorageInfo"},
    {"torch.distributed._shard.metadata", "ShardMetadata"},
    {"torch.distributed._shard.sharded_tensor.api", "ShardedTensor"},
    {"torch.distributed._shard.sharded_tensor.api", "ShardedTensor.ProcessGroupState"},
    {"torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"},
    {"torch.distributed._shard.sharded_tensor.metadata", "ShardedTensorMetadata"},
    {"torch.distributed._shard.sharded_tensor.metadata", "TensorProperties"},
    {"torch.distributed._shard.sharded_tensor.shard", "Shard"},
    {"torch.distributed._shard.sharding_spec.api", "EnumerableShardingSpec"},
    {"torch.distributed._shard.sharding_spec.chunk_sharding_spec", "ChunkShardingSpec"},
    {"torch.distributed._tensor", "DTensor"},
    {"torch.distributed._tensor._dtensor_spec", "DTensorSpec"},
    {"torch.distributed._tensor._dtensor_spec", "TensorMeta"},
    {"torch.distributed._tensor.api", "DTensor"},
    {"torch.distributed._tensor.placement_types", "DTensorSpec"},
    {"torch.distributed._tensor.placement_types", "Replicate"},
    {"torch.distributed._tensor.placement_types", "Shard"},
    {"torch.distributed._tensor.placement_types", "TensorMeta"},
    {"torch.distributed._tensor.placement_types", "_StridedShard"},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo"},
    {"torch.distributed.checkpoint.metadata", "BytesStorageMetadata"},
    {"torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"},
    {"torch.distributed.checkpoint.metadata", "Metadata"},
    {"torch.distributed.checkpoint.metadata", "MetadataIndex"},
    {"torch.distributed.checkpoint.metadata", "StorageMeta"},
    {"torch.distributed.checkpoint.metadata", "TensorProperties"},
    {"torch.distributed.checkpoint.metadata", "TensorStorageMetadata"},
    {"torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"},
    {"torch.distributed.device_mesh", "DeviceMesh"},
    {"torch.distributed.remote_device", "_remote_device"},
    {"torch.distributed.tensor", "DTensor"},
    {"torch.distributed.tensor._api", "DTensor"},
    {"torch.distributed.tensor._dtensor_spec", "DTensorSpec"},
    {"torch.distributed.tensor._dtensor_spec", "TensorMeta"},
    {"torch.distributed.tensor.placement_types", "Replicate"},
    {"torch.distributed.tensor.placement_types", "Shard"},
    {"torch.distributed.tensor.placement_types", "_StridedShard"},
    {"torch.nn.parameter", "Parameter"},
    {"torch.serialization", "_get_layout"},
    {"torch_xla.utils.serialization", "TensorReference"},
    {"types", "SimpleNamespace"},
};

constexpr PickleCaller kCallers[] = {
    {{"copyreg", "_reconstructor"}, 0, PickleUse::kBuilt, PickleCaller::Gets::kNothing},
    {{"numpy.random._pickle", "__bit_generator_ctor"}, 0, PickleUse::kCalled, PickleCaller::Gets::kNothing},
    {{"numpy.random._pickle", "__generator_ctor"}, 1, PickleUse::kCalled, PickleCaller::Gets::kItem},
    {{"numpy.random._pickle", "__randomstate_ctor"}, 1, PickleUse::kCalled, PickleCaller::Gets::kItem},
    {{"torch._tensor", "_rebuild_from_type_v2"}, 0, PickleUse::kCalled, PickleCaller::Gets::kTuple, 2},
};

/// Modules whose classes run code or write files, too (subprocess.Popen, io.FileIO), including everything in them.
constexpr std::string_view kRunsCode[] = {
    "_ctypes",
    "_functools",
    "_io",
    "_multiprocessing",
    "_operator",
    "_pickle",
    "_posixsubprocess",
    "_pyrepl",
    "_socket",
    "_sqlite3",
    "_ssl",
    "_winapi",
    "aiohttp",
    "asyncio",
    "bdb",
    "builtins",
    "bz2",
    "cProfile",
    "cgi",
    "cloudpickle",
    "code",
    "codeop",
    "commands",
    "concurrent",
    "ctypes",
    "dbm",
    "dill",
    "distutils",
    "doctest",
    "ensurepip",
    "fileinput",
    "ftplib",
    "functools",
    "gzip",
    "http",
    "httplib",
    "idlelib",
    "imaplib",
    "imp",
    "importlib",
    "inspect",
    "io",
    "itertools",
    "joblib",
    "lib2to3",
    "linecache",
    "logging",
    "lzma",
    "mailbox",
    "marshal",
    "mmap",
    "multiprocessing",
    "nntplib",
    "nt",
    "ntpath",
    "operator",
    "os",
    "paramiko",
    "pdb",
    "pexpect",
    "pickle",
    "pip",
    "pkgutil",
    "platform",
    "popen2",
    "poplib",
    "posix",
    "posixpath",
    "profile",
    "psutil",
    "pty",
    "ptyprocess",
    "pydoc",
    "requests",
    "runpy",
    "setuptools",
    "shelve",
    "shutil",
    "site",
    "smtplib",
    "socket",
    "socketserver",
    "sqlite3",
    "ssl",
    "subprocess",
    "sys",
    "tarfile",
    "telnetlib",
    "tempfile",
    "threading",
    "timeit",
    "tkinter",
    "torch.distributed.elastic",
    "torch.distributed.rpc",
    "torch.hub",
    "torch.multiprocessing",
    "torch.package",
    "torch.utils.cpp_extension",
    "torch.utils.data.datapipes",
    "torch.utils.tensorboard",
    "trace",
    "types",
    "urllib",
    "urllib2",
    "venv",
    "webbrowser",
    "wsgiref",
    "xmlrpc",
    "zipfile",
    "zipimport",
};

/// Whether the module, or one that contains it, is listed.
bool runs_code(std::string_view module) {
  for (std::size_t end = module.find('.'); true; end = module.find('.', end + 1)) {
    if (std::find(std::begin(kRunsCode), std::end(kRunsCode), module.substr(0, end)) != std::end(kRunsCode))
      return true;
    if (end == module.npos) return false;
  }
}

bool is_class_name(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('_'), name.size()));
  return !name.empty() && name[0] >= 'A' && name[0] <= 'Z';
}

}  // namespace

PickleVerdict judge(const PickleGlobal& global, PickleUse use) {
  for (const PickleGlobal& known : kKnown)
    if (global.module == known.module && global.name == known.name) return PickleVerdict::kKnown;
  if (runs_code(global.module)) return PickleVerdict::kRefused;
  // A dotted name traverses the attributes of the module: `torch` `os.system` is `os.system`.
  std::string_view last = global.name;
  for (std::size_t dot = last.find('.'); dot != last.npos; dot = last.find('.')) {
    if (runs_code(last.substr(0, dot))) return PickleVerdict::kRefused;
    last.remove_prefix(dot + 1);
  }
  return use == PickleUse::kBuilt || is_class_name(last) ? PickleVerdict::kRecorded : PickleVerdict::kRefused;
}

bool is_inert_class(const PickleGlobal& global) {
  return is_class_name(global.name.substr(global.name.rfind('.') + 1)) &&
         judge(global, PickleUse::kCalled) != PickleVerdict::kRefused;
}

bool is_code(const PickleGlobal& global) {
  const bool is_getattr = global.module == "builtins" && global.name == "getattr";  // judged by what it reads
  return judge(global, PickleUse::kBuilt) == PickleVerdict::kRefused && !is_getattr &&
         !is_class_name(global.name.substr(global.name.rfind('.') + 1));
}

const PickleCaller* caller(const PickleGlobal& global) {
  const auto* const found = std::find_if(std::begin(kCallers), std::end(kCallers), [&](const PickleCaller& one) {
    return global.module == one.global.module && global.name == one.global.name;
  });
  return found == std::end(kCallers) ? nullptr : found;
}

std::string_view python3_module(std::string_view module) {
  if (module == "__builtin__") return "builtins";
  if (module == "copy_reg") return "copyreg";
  return module;
}

}  // namespace reshard
