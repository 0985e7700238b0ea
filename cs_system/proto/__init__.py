"""Messages and service of the control plane, generated from `cs_system.proto`.

Generated with grpcio-tools 1.76, whose code runs with protobuf 6 and 7; newer generators refuse protobuf 6:

    python -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. cs_system/proto/cs_system.proto
"""
