// Options of `specdec serve`.
#pragma once

#include <string>
#include <vector>

#include "base/run_options.h"
#include "base/secret.h"

namespace specdec::deploy {

struct ServeOptions {
  std::string package;  // path of a package; "" = `target` is given instead
  std::string target, draft;
  std::string host = "127.0.0.1";
  int port = 8000;
  std::string api_key_file;
  Secret api_key;                            // the only key, if no key file is given; "" = none
  std::string tls_cert, tls_key;             // paths of PEM files; "" = plain HTTP
  std::vector<std::string> allowed_hosts;    // additional host names under which a server without keys answers
  std::vector<std::string> allowed_origins;  // web pages of these origins may call the server
  std::string admin_socket;
  std::string record_dir;        // directory for traffic records (with text) and acceptance records
  double record_rejects = 0;     // fraction of the conversations whose rejected draft tokens are recorded, too
  int64_t record_quota_mib = 0;  // MiB of all files under record_dir; 0 = no quota
  std::string acceptance_log;    // file for acceptance records, which hold no text
  // Names in /v1/models; replies carry the first name. Default: the name of the target's directory.
  std::vector<std::string> model_names;
  std::string tool_call_parser = "auto";  // a ToolFormat; auto: detected from the chat template
  bool split_reasoning = true;            // thoughts are returned in reasoning_content
  int64_t max_batch = 8, queue_limit = 256, max_context = 0;
  int64_t cache_mib = 0;  // MiB for the KV caches of target and draft; 0: for max_batch sequences of max_context tokens
  int64_t tenant_queue = 0;  // limit of waiting requests per tenant; 0: queue_limit, or half if there are several
  double drain_seconds = 30;
  bool allow_stale = false;
  int tensor_parallel = 1;  // number of processes that each hold a shard of the target
  DeviceOptions device;
  SpeculationOptions speculation;
  bool max_k_given = false, verify_given = false;  // true: the user set the flag, so the package's value is not used
};

}  // namespace specdec::deploy
