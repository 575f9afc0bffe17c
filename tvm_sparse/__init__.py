import tvm.script
tvm.script.register_dialect("sparse", "tvm_sparse.script")
