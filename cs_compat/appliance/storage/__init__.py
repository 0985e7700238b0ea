"""Checkpoints as files and as objects of an S3 store."""

from cs_compat.appliance.storage.base_storage import StorageDeleter, StorageReader, StorageWriter
from cs_compat.appliance.storage.h5_storage import H5Deleter, H5Reader, H5Writer
from cs_compat.appliance.storage.s3_storage import S3Deleter, S3Reader, S3Writer

__all__ = [
    "H5Deleter",
    "H5Reader",
    "H5Writer",
    "S3Deleter",
    "S3Reader",
    "S3Writer",
    "StorageDeleter",
    "StorageReader",
    "StorageWriter",
]
