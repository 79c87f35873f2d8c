DeviceLikeType = str
